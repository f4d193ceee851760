package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// open returns two devices with a connected QP each.
func open(t *testing.T) (dev [2]*roce.Device, qps [2]*roce.QP) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link, err := loopback.NewLink(loopback.Config{})
	check(err)
	for i := range dev {
		dev[i], err = roce.New(link.Port(i))
		check(err)
		t.Cleanup(func() { _ = dev[i].Close() })
		pd, err := dev[i].AllocPD()
		check(err)
		qps[i], err = dev[i].CreateQP(pd, roce.QPConfig{})
		check(err)
	}
	ctx := context.Background()
	check(qps[0].Connect(ctx, qps[1].Local(), roce.ConnectOptions{}))
	check(qps[1].Connect(ctx, qps[0].Local(), roce.ConnectOptions{}))
	return dev, qps
}

func TestMetrics(t *testing.T) {
	dev, qps := open(t)
	if err := qps[1].PostRecv(roce.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := qps[0].PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled}); err != nil {
		t.Fatal(err)
	}
	if err := qps[0].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler(dev[0]))
	defer server.Close()
	resp, err := http.Get(server.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v: %v\n%s", resp.Status, err, body)
	}
	name := `device="` + dev[0].Info().Name + `"`
	for _, want := range []string{
		"# HELP gorxe_sent_pkts_total packets sent\n",
		"# TYPE gorxe_sent_pkts_total counter\n",
		"gorxe_completions_total{" + name + "} 1\n",
		"# TYPE gorxe_parked_bytes gauge\n",
		`gorxe_class_sent_pkts_total{class="0",` + name + "} ",
		`gorxe_drop_frame_total{` + name + `,reason="bad_icrc"} 0`,
		`gorxe_cm_received_total{` + name + `,message="req"} 0`,
		"# TYPE gorxe_qp_window_packets gauge\n",
		`gorxe_qp_retransmits_total{` + name + `,qpn="0x`,
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the output does not contain %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", body)
	}
}
