// Command kv is the program of docs/guide.md: a replicated key-value store whose clients read with
// RDMA READ and whose primary replicates with RDMA WRITE.
//
//	kv demo                                 three nodes in this process, on a link in memory
//	kv serve INTERFACE [BACKUP:7472 ...]    a node; with backups, a primary
//	kv put INTERFACE NODE:7472 KEY VALUE
//	kv get INTERFACE NODE:7472 KEY
//
// INTERFACE is a network interface or an IP address of this host: see roce.Open. Each process needs
// one that no other RoCE device uses, for example 127.0.0.2.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const port = 7472

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		stop()
		log.Fatal(err)
	}
}

var errUsage = errors.New("usage: kv demo | serve INTERFACE [BACKUP:7472 ...] | " +
	"put INTERFACE NODE:7472 KEY VALUE | get INTERFACE NODE:7472 KEY")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "demo" {
		return demo(ctx)
	}
	if len(args) < 2 {
		return errUsage
	}
	dev, err := roce.Open(args[1])
	if err != nil {
		return err
	}
	defer dev.Close()
	switch op, rest := args[0], args[2:]; {
	case op == "serve":
		return serve(ctx, dev, rest)
	case op == "put" && len(rest) == 3, op == "get" && len(rest) == 2:
		return once(ctx, dev, rest)
	}
	return errUsage
}

// serve runs a node with the given backups.
func serve(ctx context.Context, dev *roce.Device, backups []string) error {
	n, err := newNode(dev, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if err != nil {
		return err
	}
	for _, b := range backups {
		addr, err := netip.ParseAddrPort(b)
		if err != nil {
			return err
		}
		if err := n.follow(ctx, addr); err != nil {
			return err
		}
	}
	return n.serve(ctx)
}

// once puts or gets one pair: NODE KEY [VALUE].
func once(ctx context.Context, dev *roce.Device, args []string) error {
	addr, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	c, err := dial(ctx, dev, addr)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	if len(args) == 3 {
		return c.put(ctx, args[1], args[2])
	}
	value, err := c.get(ctx, args[1])
	if err == nil {
		fmt.Println(value)
	}
	return err
}

// demo stores a pair in a primary with a backup, stops the primary, and goes on with the backup.
func demo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	link, err := loopback.NewLink(loopback.Config{Ports: 3, Seed: 1,
		Plan: loopback.Plan{Loss: 0.01}}) // every hundredth packet is lost
	if err != nil {
		return err
	}
	var nodes [2]*node
	var addrs [2]netip.AddrPort
	for i := range nodes {
		dev, err := roce.New(link.Port(i))
		if err != nil {
			return err
		}
		defer dev.Close()
		addrs[i] = netip.AddrPortFrom(link.Port(i).Addrs()[0].Addr(), port)
		if nodes[i], err = newNode(dev, addrs[i]); err != nil {
			return err
		}
		go nodes[i].serve(ctx)
	}
	primary, backup := nodes[0], nodes[1]
	if err := primary.follow(ctx, addrs[1]); err != nil {
		return err
	}
	dev, err := roce.New(link.Port(2))
	if err != nil {
		return err
	}
	defer dev.Close()

	c, err := dial(ctx, dev, addrs[0])
	if err != nil {
		return err
	}
	if err := c.put(ctx, "planet", "Earth"); err != nil {
		return err
	}
	value, err := c.get(ctx, "planet")
	if err != nil {
		return err
	}
	fmt.Println("the primary has", value)

	if err := primary.close(); err != nil { // the primary dies
		return err
	}
	if err := backup.promote(); err != nil {
		return err
	}
	if c, err = dial(ctx, dev, addrs[1]); err != nil {
		return err
	}
	if value, err = c.get(ctx, "planet"); err != nil {
		return err
	}
	fmt.Println("the backup has", value)
	return c.put(ctx, "planet", "Mars")
}
