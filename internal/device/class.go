package device

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Classes has the flags about traffic classes. The zero value is the default of package roce.
type Classes struct {
	Map ClassMap

	class  cli.Int
	flag   *pflag.Flag // --class; nil: the command does not have it
	config classConfig
	link   linkRate
}

// Register adds the flag --class-map.
func (c *Classes) Register(fs *pflag.FlagSet) { c.Map.Register(fs) }

// RegisterClass adds the flag --class for the class of all queue pairs.
func (c *Classes) RegisterClass(fs *pflag.FlagSet, usage string) {
	c.class = cli.Int{Min: 0, Max: roce.NumClasses - 1}
	fs.Var(&c.class, "class", usage)
	cli.HideDefaults(fs, "class")
	c.flag = fs.Lookup("class")
}

// RegisterConfig adds the flags --class-config and --link-rate, for commands whose queue pairs may
// have different classes.
func (c *Classes) RegisterConfig(fs *pflag.FlagSet) {
	fs.Var(&c.link, "link-rate", "rate of the Ethernet link, such as 1Gb/s, to limit how much waits "+
		"below traffic classes (default: what the interface reports as not sent yet)")
	fs.Var(&c.config, "class-config", "how to send a traffic class, such as 7:fifo or "+
		"0:preempt=64k,rate=500Mb/s,burst=64k; may be repeated")
}

// Options returns the options of a device.
func (c *Classes) Options() (opts []roce.Option) {
	if c.Map.text != "" {
		opts = append(opts, roce.WithClassMap(c.Map.Value()))
	}
	if c.flag != nil && c.flag.Changed {
		class := c.class.N
		if class == 0 {
			class = -1 // also on a server whose client chooses another class
		}
		opts = append(opts, roce.WithDefaultClass(class))
	}
	if c.config.text != "" {
		opts = append(opts, roce.WithClasses(c.config.classes))
	}
	if c.link != 0 {
		opts = append(opts, roce.WithLinkRate(int64(c.link)))
	}
	return opts
}

// ClassMap is a flag value: a class map that differs from the default in some classes.
type ClassMap struct {
	text string
	set  [roce.NumClasses]bool
	m    roce.ClassMap // of the classes that are set
}

// Register adds the flag --class-map.
func (c *ClassMap) Register(fs *pflag.FlagSet) {
	fs.Var(c, "class-map", "DSCP and VLAN priority of traffic classes, CLASS:DSCP or "+
		"CLASS:DSCP:PCP, such as 7:46,5:34:4 (default: class N has DSCP 8*N and PCP N)")
}

// Value returns the class map.
func (c *ClassMap) Value() roce.ClassMap {
	m := roce.DefaultClassMap()
	for i, set := range c.set {
		if set {
			m.DSCP[i], m.PCP[i] = c.m.DSCP[i], c.m.PCP[i]
		}
	}
	return m
}

// Set implements pflag.Value.
func (c *ClassMap) Set(text string) error {
	next := *c
	next.text = joinTexts(c.text, text)
	for entry := range strings.SplitSeq(text, ",") {
		fields := strings.Split(entry, ":")
		if len(fields) < 2 || len(fields) > 3 {
			return fmt.Errorf("%q is not an entry of a class map: write CLASS:DSCP or CLASS:DSCP:PCP, "+
				"such as 7:46 or 7:46:5", entry)
		}
		class, err := parseClass(fields[0])
		if err != nil {
			return err
		}
		if next.set[class] {
			return fmt.Errorf("class %d has two entries: remove one", class)
		}
		dscp, err := parseField("DSCP", fields[1], 63)
		if err != nil {
			return err
		}
		pcp := class
		if len(fields) == 3 {
			if pcp, err = parseField("PCP", fields[2], 7); err != nil {
				return err
			}
		}
		next.set[class] = true
		next.m.DSCP[class], next.m.PCP[class] = uint8(dscp), uint8(pcp)
	}
	*c = next
	return nil
}

// String implements pflag.Value.
func (c *ClassMap) String() string { return c.text }

// Type implements pflag.Value.
func (c *ClassMap) Type() string { return "map" }

// classConfig is a flag value: the configurations of some classes.
type classConfig struct {
	text    string
	set     [roce.NumClasses]bool
	classes [roce.NumClasses]roce.ClassConfig
}

// Set implements pflag.Value. It adds the configuration of one class.
func (c *classConfig) Set(text string) error {
	name, settings, ok := strings.Cut(text, ":")
	if !ok || settings == "" {
		return fmt.Errorf("%q has no settings: write CLASS:SETTING,..., such as 7:fifo", text)
	}
	class, err := parseClass(name)
	if err != nil {
		return err
	}
	if c.set[class] {
		return fmt.Errorf("class %d has two configurations: put all settings into one", class)
	}
	var conf roce.ClassConfig
	seen := map[string]bool{}
	for s := range strings.SplitSeq(settings, ",") {
		key, err := parseSetting(&conf, s)
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("class %d has two settings of its %s: remove one", class, key)
		}
		seen[key] = true
	}
	if seen["burst"] && !seen["rate"] {
		return fmt.Errorf("class %d has a burst without a rate: add one, such as rate=500Mb/s", class)
	}
	c.set[class], c.classes[class] = true, conf
	c.text = joinTexts(c.text, text)
	return nil
}

// parseSetting stores a setting in c. It returns what it is about.
func parseSetting(c *roce.ClassConfig, text string) (key string, err error) {
	key, value, _ := strings.Cut(text, "=")
	size := cli.Size{Min: 1, Max: roce.MaxMessage}
	switch {
	case text == "fifo":
		c.Order, key = roce.FIFO, "order"
	case text == "round-robin":
		c.Order, key = roce.RoundRobin, "order"
	case text == "preempt=any":
		c.Preempt = 0
	case text == "preempt=end":
		c.Preempt = roce.PreemptAtEnd
	case key == "preempt":
		if size.Set(value) != nil {
			return key, fmt.Errorf("preempt=%s is out of range: write any (after each packet), end "+
				"(of a message), or a number of bytes such as 64k", value)
		}
		c.Preempt = size.Int()
	case key == "rate":
		bits, err := cli.ParseRate(value)
		if err != nil {
			return key, err
		}
		if c.Rate = uint64(bits / 8); c.Rate < roce.MinRate || c.Rate > roce.MaxRate {
			return key, fmt.Errorf("rate=%s is out of range: choose 8kb/s to 8796Gb/s", value)
		}
	case key == "burst":
		size.Max = roce.MaxBurst
		if err := size.Set(value); err != nil {
			return key, fmt.Errorf("burst: %w", err)
		}
		c.Burst = size.Int()
	default:
		return key, fmt.Errorf("%q is not a setting of a class: choose fifo, round-robin, "+
			"preempt=BYTES, rate=RATE or burst=BYTES", text)
	}
	return key, nil
}

// String implements pflag.Value.
func (c *classConfig) String() string { return c.text }

// Type implements pflag.Value.
func (c *classConfig) Type() string { return "config" }

// linkRate is a flag value: bits per second; 0: not set.
type linkRate int64

// Set implements pflag.Value.
func (l *linkRate) Set(text string) error {
	bits, err := cli.ParseRate(text)
	if err != nil {
		return err
	}
	if bits < roce.MinLinkRate || bits > roce.MaxLinkRate {
		return fmt.Errorf("%s is out of range: choose 1Mb/s to 8796Gb/s", text)
	}
	*l = linkRate(bits)
	return nil
}

// String implements pflag.Value.
func (l *linkRate) String() string {
	if *l == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*l), 10) + "b/s"
}

// Type implements pflag.Value.
func (l *linkRate) Type() string { return "rate" }

func joinTexts(a, b string) string {
	if a == "" {
		return b
	}
	return a + "," + b
}

func parseClass(text string) (int, error) {
	return parseField("traffic class", text, roce.NumClasses-1)
}

// parseField parses a whole number from 0 to largest.
func parseField(name, text string, largest int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (n < 0 || n > largest):
		return 0, fmt.Errorf("%s %s is out of range: choose 0 to %d", name, text, largest)
	case err != nil:
		return 0, fmt.Errorf("%s %q is not a whole number: choose 0 to %d", name, text, largest)
	}
	return n, nil
}
