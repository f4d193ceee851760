package rsocket_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket"
)

// newDevices returns two devices on a link in memory. Programs call roce.Open.
func newDevices() (client, server *roce.Device, closeAll func()) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var d [2]*roce.Device
	for i := range d {
		if d[i], err = roce.New(link.Port(i)); err != nil {
			log.Fatal(err)
		}
	}
	return d[0], d[1], func() {
		for _, d := range d {
			if err := d.Close(); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// An echo server for any number of clients, and a client.
func Example() {
	clientDev, serverDev, closeAll := newDevices()
	defer closeAll()

	l, err := rsocket.Listen(serverDev, ":7471", rsocket.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			go func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err != nil {
					log.Print(err)
				}
			}()
		}
	}()

	c, err := rsocket.Dial(context.Background(), clientDev, l.Addr().String(), rsocket.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello"); err != nil {
		log.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	fmt.Println(string(answer), err)
	// Output: hello <nil>
}

// An HTTP server and client. HTTPS and HTTP/2 work in the same way.
func ExampleDialer_DialContext() {
	clientDev, serverDev, closeAll := newDevices()
	defer closeAll()

	l, err := rsocket.Listen(serverDev, ":80", rsocket.Config{})
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s over RDMA", r.URL.Path)
	})}
	defer server.Close()
	go server.Serve(l)

	d := rsocket.Dialer{Device: clientDev}
	transport := &http.Transport{DialContext: d.DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	r, err := client.Get("http://" + l.Addr().String() + "/hello")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	fmt.Println(string(body), err)
	// Output: /hello over RDMA <nil>
}
