// Command prometheus opens a device on a network interface and exports its counters in the format
// of Prometheus:
//
//	prometheus --iface eth1 --listen 127.0.0.1:9464
//	curl http://127.0.0.1:9464/metrics
//
// It is a module of its own, so that programs that use gorxe do not depend on the client library of
// Prometheus. Copy collector.go into a program that has a device already.
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gorxe/gorxe/roce"
)

func main() {
	iface := flag.String("iface", "", "network interface")
	listen := flag.String("listen", "127.0.0.1:9464", "address of the HTTP server")
	flag.Parse()
	dev, err := roce.Open(*iface)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: *listen, Handler: handler(dev), ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// handler serves the metrics of the device at /metrics.
func handler(dev *roce.Device) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{dev})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return mux
}
