package status

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/roce"
)

// patience bounds the wait for the browser on a busy machine.
const patience = 90 * time.Second

// tab is a page in a headless browser, controlled by the DevTools protocol.
type tab struct {
	t     *testing.T
	conn  *websocket.Conn
	calls int
	bad   []string // exceptions and errors of the page
}

// openTab starts a browser and opens a page in it.
func openTab(t *testing.T, url string) *tab {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium is installed: apt-get install chromium")
	}
	profile, err := os.MkdirTemp("", "gorxe-browser-")
	if err != nil {
		t.Fatal(err)
	}
	// t.TempDir would fail the test if processes of the browser still write when it removes the
	// folder.
	t.Cleanup(func() {
		for i := 0; os.RemoveAll(profile) != nil && i < 100; i++ {
			time.Sleep(10 * time.Millisecond)
		}
	})
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-allow-origins=*",
		"--user-data-dir="+profile, "about:blank")
	// the browser consists of several processes
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	watchdog := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { watchdog.Stop() })
	lines := bufio.NewScanner(stderr)
	var log strings.Builder
	host := ""
	for host == "" && lines.Scan() {
		fmt.Fprintln(&log, lines.Text())
		if _, rest, ok := strings.Cut(lines.Text(), "DevTools listening on ws://"); ok {
			host, _, _ = strings.Cut(rest, "/")
		}
	}
	if host == "" {
		t.Fatalf("the browser does not start:\n%s", &log)
	}
	go func() {
		for lines.Scan() {
		}
	}()
	req, err := http.NewRequest("PUT", "http://"+host+"/json/new?about:blank", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var target struct{ WebSocketDebuggerUrl string }
	if err := json.NewDecoder(resp.Body).Decode(&target); err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t}
	if b.conn, err = websocket.Dial(target.WebSocketDebuggerUrl, "", "http://"+host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close() })
	if err := b.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	b.call("Runtime.enable", nil)
	b.call("Log.enable", nil)
	b.call("Page.navigate", map[string]any{"url": url})
	return b
}

// call calls a method of the browser and returns its result.
func (b *tab) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.calls++
	err := websocket.JSON.Send(b.conn, map[string]any{"id": b.calls, "method": method, "params": params})
	for err == nil {
		var m struct {
			ID            int
			Method        string
			Params        json.RawMessage
			Result, Error json.RawMessage
		}
		if err = websocket.JSON.Receive(b.conn, &m); err != nil {
			break
		}
		switch {
		case m.Method == "Runtime.exceptionThrown",
			m.Method == "Log.entryAdded" && strings.Contains(string(m.Params), `"error"`):
			b.bad = append(b.bad, string(m.Params))
		case m.ID == b.calls && m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error)
		case m.ID == b.calls && m.ID != 0:
			return m.Result
		}
	}
	b.t.Fatalf("%s: %v", method, err)
	return nil
}

// eval returns the value of an expression in the page as text.
func (b *tab) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct{ Value any }
	}
	text := b.call("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")",
		"returnByValue": true})
	if err := json.Unmarshal(text, &r); err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprint(r.Result.Value)
}

// await waits until an expression is true.
func (b *tab) await(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); b.eval(expression) != "true"; {
		if time.Now().After(end) {
			b.t.Fatalf("%s does not become true; the page is\n%s", expression,
				b.eval("document.body.innerText"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// The page shows the device and follows its changes in a browser. Tables can be sorted and
// filtered, names of programs cannot inject HTML, and the page says when the server is gone.
func TestPageInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	p := newPair(t)
	p.send(t, 2)
	const hostile = `<img src=x onerror=alert(1)>`
	member := Report{Slot: 7, PID: 4242, UID: 1000, Name: hostile, Joined: time.Now()}
	report := strings.ReplaceAll(string(inside.Report(p.dev[1], MaxQPs)),
		fmt.Sprintf(`"qpn":%d`, p.qp[1].QPN()), fmt.Sprintf(`"qpn":%d`, 7<<slotShift+5))
	member.Body = []byte(report)
	k := NewCollector(Config{Device: p.dev[0], Name: "owner", Version: "v9",
		Members: func() []Report { return []Report{member} }})
	server := httptest.NewServer(Handler(k, ""))
	defer server.Close()
	b := openTab(t, server.URL+"/")

	rows := func(table string) string {
		return "document.querySelectorAll('#" + table + " tbody tr').length"
	}
	cell := func(table string, row, column int) string {
		return fmt.Sprintf("document.querySelectorAll('#%s tbody tr')[%d].cells[%d].textContent", table,
			row, column)
	}
	b.await(rows("programs") + " === 2 && " + rows("qps") + " === 2")
	for expression, want := range map[string]string{
		cell("programs", 0, 1): "owner",
		cell("programs", 1, 1): hostile,
		"[...document.querySelectorAll('#qps tbody tr')].some(r => " +
			"r.cells[0].textContent === '0x070005' && r.cells[3].textContent === 'RTS')": "true",
		"document.images.length":                                            "0",
		"document.getElementById('state').textContent":                      "link up",
		"document.title":                                                    "gorxe " + p.dev[0].Info().Name,
		"document.querySelectorAll('#rtt rect').length>0":                   "true",
		"document.getElementById('facts').textContent.includes('gorxe v9')": "true",
	} {
		if got := b.eval(expression); got != want {
			t.Errorf("%s = %q, want %q", expression, got, want)
		}
	}

	// Two clicks sort by slot in descending order.
	click := "document.querySelectorAll('#programs th button')[0].click()"
	b.eval(click)
	if got := b.eval(cell("programs", 0, 0)); got != "7" {
		t.Errorf("the first slot in descending order is %s, want 7", got)
	}
	if got := b.eval("document.querySelector('#programs th').ariaSort"); got != "descending" {
		t.Errorf("aria-sort is %q, want descending", got)
	}
	b.eval(click)
	if got := b.eval(cell("programs", 0, 0)); got != "0" {
		t.Errorf("the first slot in ascending order is %s, want 0", got)
	}

	// The histogram shows the queue pair that was chosen, and all again after a second click.
	for _, test := range []struct{ choose, want string }{
		{fmt.Sprintf("0x%06x", uint32(p.qp[0].QPN())), " of queue pair "},
		{"0x070005", " of queue pair "}, {"0x070005", " of RC queue pairs "},
	} {
		b.eval("[...document.querySelectorAll('#qps td button')].find(x => x.textContent === '" +
			test.choose + "').click()")
		got := b.eval("document.getElementById('rtt-text').textContent")
		if !strings.Contains(got, test.want) ||
			strings.Contains(got, test.choose) != strings.Contains(test.want, "queue pair ") {
			t.Errorf("after a click on %s the histogram has the text %q", test.choose, got)
		}
	}

	// The page refreshes itself, and the filter stays.
	b.eval("(f => { f.value = 'owner'; f.dispatchEvent(new Event('input')); })" +
		"(document.getElementById('filter'))")
	if got := b.eval(rows("qps")); got != "1" {
		t.Errorf("%s queue pairs match the filter, want 1", got)
	}
	pd, err := p.dev[0].AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.dev[0].CreateQP(pd, roce.QPConfig{}); err != nil {
		t.Fatal(err)
	}
	b.await(rows("qps") + " === 2")
	b.await("document.getElementById('tiles').textContent.includes('3queue pairs')")

	// The colors follow the preference of the browser.
	colors := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
			{"name": "prefers-color-scheme", "value": scheme}}})
		colors[b.eval("getComputedStyle(document.body).backgroundColor")] = true
	}
	if len(colors) != 2 {
		t.Errorf("the background is %v in both color schemes", colors)
	}
	if len(b.bad) > 0 {
		t.Errorf("errors in the page: %v", b.bad)
	}
	server.CloseClientConnections()
	server.Close()
	b.await("document.getElementById('state').textContent.startsWith('no answer')")
}
