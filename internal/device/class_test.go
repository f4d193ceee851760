package device

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// classFlags parses the flags about traffic classes.
func classFlags(args ...string) (*Classes, error) {
	c := new(Classes)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.Register(fs)
	c.RegisterClass(fs, "traffic class")
	c.RegisterConfig(fs)
	return c, fs.Parse(args)
}

// The flags determine the class map and the class of a device. Without flags it has the defaults.
func TestClassFlags(t *testing.T) {
	def := roce.DefaultClassMap()
	some := def
	some.DSCP[0], some.DSCP[7], some.DSCP[5], some.PCP[5] = 10, 46, 34, 0
	for _, c := range []struct {
		args  string
		m     roce.ClassMap
		class uint8
	}{
		{"", def, 0},
		{"--class 7", def, 7},
		{"--class-map 7:46,5:34:0,0:10 --class 0", some, 0},
		{"--class-map 7:46 --class-map 5:34:0 --class-map 0:10:0 --class=3", some, 3},
		{"--class-config 7:fifo --class-config 0:round-robin,preempt=end,rate=8kb/s,burst=1g", def, 0},
		{"--link-rate 978Mb/s", def, 0},
		{"--class-config 1:preempt=64k,rate=1Gb/s --class-config 2:preempt=any", def, 0},
	} {
		f, err := classFlags(strings.Fields(c.args)...)
		if err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		link, err := loopback.NewLink(loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev, err := roce.New(link.Port(0), f.Options()...)
		if err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		defer dev.Close()
		if dev.ClassMap() != c.m {
			t.Errorf("%s: class map %v, want %v", c.args, dev.ClassMap(), c.m)
		}
		ah, err := dev.CreateAH(t.Context(), roce.AHAttr{
			Remote: roce.GIDFromAddr(link.Port(1).Addrs()[0].Addr())})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := ah.Path().Address().TrafficClass, c.m.DSCP[c.class]<<2; got != want {
			t.Errorf("%s: traffic class %#x, want %#x", c.args, got, want)
		}
	}
}

func TestLinkRateFlag(t *testing.T) {
	f, err := classFlags("--link-rate", "978Mb/s")
	if err != nil || f.link != 978e6 || f.link.String() != "978000000b/s" {
		t.Errorf("--link-rate 978Mb/s: %v, %v", &f.link, err)
	}
}

func TestClassConfigFlag(t *testing.T) {
	f, err := classFlags("--class-config", "7:fifo", "--class-config",
		"0:round-robin,preempt=end,rate=500Mb/s,burst=64k", "--class-config", "3:preempt=1m")
	want := [roce.NumClasses]roce.ClassConfig{
		7: {Order: roce.FIFO}, 3: {Preempt: 1 << 20},
		0: {Preempt: roce.PreemptAtEnd, Rate: 500e6 / 8, Burst: 64 << 10}}
	if err != nil || f.config.classes != want {
		t.Errorf("--class-config: %+v, %v; want %+v", f.config.classes, err, want)
	}
}

func TestClassFlagsRefuse(t *testing.T) {
	for _, args := range []string{
		"--class 8", "--class -1", "--class x", "--class 1.5", "--class=",
		"--class-map=", "--class-map 7", "--class-map 7:", "--class-map :46", "--class-map 8:46",
		"--class-map -1:46", "--class-map 7:64", "--class-map 7:-1", "--class-map 7:46:8",
		"--class-map 7:46:-1", "--class-map 7:46:1:1", "--class-map 7:46,", "--class-map 7:46,7:46",
		"--class-map 7:46 --class-map 7:46", "--class-map x", "--class-map 1:0x10",
		"--class-config=", "--class-config fifo", "--class-config 8:fifo", "--class-config 7:",
		"--class-config 7:fifo,", "--class-config 7:fifo,fifo", "--class-config 7:FIFO",
		"--class-config 7:preempt", "--class-config 7:preempt=0", "--class-config 7:preempt=3g",
		"--class-config 7:rate=", "--class-config 7:rate=7kb/s", "--class-config 7:rate=9000Gb/s",
		"--class-config 7:burst=1k", "--class-config 7:rate=1Gb/s,burst=0",
		"--class-config 7:rate=1Gb/s,rate=1Gb/s", "--class-config 7:fifo --class-config 7:fifo",
		"--link-rate 0", "--link-rate fast", "--link-rate 999kb/s", "--link-rate 9000Gb/s",
	} {
		if f, err := classFlags(strings.Fields(args)...); err == nil {
			t.Errorf("%s is accepted: %+v", args, f)
		}
	}
	// A number that is too large is out of range, as smaller ones are.
	_, err := classFlags("--class-map", "7:99999999999999999999")
	if err == nil || !strings.Contains(err.Error(), "out of range: choose 0 to 63") {
		t.Errorf("--class-map 7:99999999999999999999: error %v, want the range", err)
	}
	// A value that is refused changes nothing.
	var m ClassMap
	if err := m.Set("7:46,8:1"); err == nil || m.Value() != roce.DefaultClassMap() ||
		m.String() != "" {
		t.Errorf("Set(7:46,8:1) = %v, and the value is %q", err, m.String())
	}
}
