package model

import (
	"fmt"
	"sort"
	"time"
)

// Assumption is a parameter and the reason for its value.
type Assumption struct {
	Name   string
	Value  string
	Stated bool // by the paper
	Why    string
}

// Assumptions returns all parameters of the model.
func (c *Config) Assumptions() []Assumption {
	ns := func(d time.Duration) string { return fmt.Sprintf("%d ns", d.Nanoseconds()) }
	b := func(n int) string { return fmt.Sprintf("%d B", n) }
	return []Assumption{
		{"link", fmt.Sprintf("%g Gb/s", float64(c.LinkRate)/1e9), true, "section IV"},
		{"PCIe", fmt.Sprintf("%g Gb/s", float64(c.PCIeRate)/1e9), true,
			"section IV; shared by all reads, packet headers not counted"},
		{"PCIe round trip", ns(c.PCIeRTT), true, "section IV"},
		{"message", b(c.Message), true, "section IV.A"},
		{"posted per QP", fmt.Sprintf("%d messages", c.Posted), true,
			"section IV.A; reposted as they are sent"},
		{"MPT, MTT entries, figure 5", fmt.Sprint(c.Memory), true, "section IV.B"},
		{"QPC entries, figure 6", fmt.Sprint(c.LightQPC), true, "section IV.C"},
		{"QPC, WQE, MPT, MTT entries",
			fmt.Sprint(c.Cache[QPC], c.Cache[WQE], c.Cache[MPT], c.Cache[MTT]), false,
			"where the decline of the commodity NIC begins (figure 3); one MR per QP"},
		{"replacement", "LRU", false,
			"figures 5 and 6 lose all hits beyond the size of the cache, as LRU does in round robin order"},
		{"chunk", b(c.Chunk), false,
			"calibrated: the paper's formula with its window of 7 and two steps of 500 ns, at 70 Mop/s"},
		{"slots of a lookup stage", fmt.Sprint(c.Slots), false,
			"the smallest number with which a stage asks while it waits"},
		{"units, figure 3", fmt.Sprint(c.Units), false,
			"calibrated for this series: half of the peak at 16,384 QPs; the rates between 2048 and 16,384 follow"},
		{"overhead on the wire", b(c.Overhead), false,
			"preamble and gap 20, Ethernet 14 and FCS 4, VLAN tag (lossless class) 4, IPv4 20, UDP 8, BTH 12, RETH 16, ICRC 4"},
		{"acknowledgment", b(c.Ack), false, "the same with an AETH of 4 instead of the RETH"},
		{"QPC", b(c.Size[QPC]), false, "typical size of hardware contexts"},
		{"WQE", b(c.Size[WQE]), false,
			"control, remote address and one SGE, 16 B each, in a block of 64"},
		{"MPT and MTT entry", b(c.Size[MPT]) + " and " + b(c.Size[MTT]), false,
			"an entry, and the cache line that holds one"},
		{"lookup that hits", ns(c.Hit), false, "a few cycles of on-chip memory"},
		{"outstanding payload reads", fmt.Sprint(c.Reads), false, "8-bit PCIe tags"},
		{"building a WQE", ns(c.Prepare), false,
			"section III.B: at least several hundreds of nanoseconds"},
		{"pass through a NIC", ns(c.Pass), false,
			"protocol pipeline, MAC and PHY; a WRITE and its ACK pass four times"},
		{"cable", ns(c.Cable), false, "3 m"},
		{"doorbell, CQE", ns(c.PCIeRTT / 2), false, "a PCIe write is half a round trip"},
		{"prefetch window", fmt.Sprintf("%d QPs", c.Window), false,
			fmt.Sprintf("figures 3, 5 and 6; the paper's formula with four kinds gives %d and ignores what the pipeline hides", c.Params.Window())},
		{"seed", fmt.Sprint(c.Seed), false, "of the random order, figure 3"},
	}
}

// Summary has the values for which the paper states numbers.
type Summary struct {
	Peak       float64 // Mop/s with prefetching
	NoPrefetch float64 // Mop/s without, all caches too small
	AtWindow   float64 // Mop/s with the paper's window of 7
	Saturates  int     // the smallest window with the share Saturated of the peak
	Memory     float64 // Mop/s without prefetching, MPT and MTT too small
	Hit        float64 // us, figure 6
	Missed     float64 // us
	Hinted     float64 // us, with misses hidden by hints
}

// Gain returns the factor by which prefetching increases the rate.
func (s *Summary) Gain() float64 { return s.Peak / s.NoPrefetch }

// Saved returns the share of the latency that hints save.
func (s *Summary) Saved() float64 { return 1 - s.Hinted/s.Missed }

// Saturated is the share of the peak that counts as the peak.
const Saturated = 0.95

const (
	widest      = 64  // largest window that is tried for Saturates
	manyQPs     = 256 // in figure 6
	fewQPs      = 4
	beyondCache = 2 // any factor above 1: round robin LRU always misses beyond its size
)

// Summarize computes a Summary with twice as many QPs and MRs as the largest cache has entries.
func (c *Config) Summarize() (*Summary, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	qps := min(MaxQPs, beyondCache*max(c.Cache[QPC], c.Cache[WQE], c.Cache[MPT], c.Cache[MTT]))
	s := &Summary{}
	var err error
	get := func(y float64, e error) float64 {
		if err == nil {
			err = e
		}
		return y
	}
	rate := func(window int) float64 {
		return get(c.rate(&c.Params, Load{QPs: qps, MRs: qps, Window: window}))
	}
	s.Peak, s.NoPrefetch, s.AtWindow = rate(widest), rate(0), rate(PaperWindow)
	s.Saturates = sort.Search(widest, func(w int) bool { return rate(w) >= Saturated*s.Peak })
	s.Memory = get(regions(c, NoPrefetch, beyondCache*c.Memory))
	s.Hit = get(latency(c, NoPrefetch, fewQPs))
	s.Missed = get(latency(c, NoPrefetch, manyQPs))
	s.Hinted = get(latency(c, Prefetch, manyQPs))
	return s, err
}

// Variant is the model with one assumption changed.
type Variant struct {
	Name   string
	Change func(c *Config)
}

// Variants returns other assumptions that are plausible.
func Variants() []Variant {
	return []Variant{
		{"default", func(*Config) {}},
		{"chunk 320 B", func(c *Config) { c.Chunk = 320 }},
		{"chunk 1280 B", func(c *Config) { c.Chunk = 1280 }},
		{"1 slot per stage", func(c *Config) { c.Slots = 1 }},
		{"3 slots per stage", func(c *Config) { c.Slots = 3 }},
		{"1280 B, 1 slot", func(c *Config) { c.Chunk, c.Slots = 1280, 1 }},
		{"no VLAN tag", func(c *Config) { c.Overhead -= 4 }},
		{"IPv6", func(c *Config) { c.Overhead += 20; c.Ack += 20 }},
		{"PCIe at 100 Gb/s", func(c *Config) { c.PCIeRate = 100e9 }},
		{"PCIe 400 ns", func(c *Config) { c.PCIeRTT = 400 * time.Nanosecond }},
		{"PCIe 600 ns", func(c *Config) { c.PCIeRTT = 600 * time.Nanosecond }},
		{"QPC 512 B", func(c *Config) { c.Size[QPC] = 512 }},
		{"hit in 20 ns", func(c *Config) { c.Hit = 20 * time.Nanosecond }},
		{"64 payload reads", func(c *Config) { c.Reads = 64 }},
		{"WQE in 250 ns", func(c *Config) { c.Prepare = 250 * time.Nanosecond }},
		{"pass in 180 ns", func(c *Config) { c.Pass = 180 * time.Nanosecond }},
	}
}
