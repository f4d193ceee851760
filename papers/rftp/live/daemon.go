package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	sshPort   = 22
	rsyncPort = 873
	// sshdRun is an empty directory that sshd of most distributions needs. Often it exists only
	// while their own sshd runs. It is not removed, because other runs may use it.
	sshdRun = "/run/sshd"
)

// programs are the installed programs of others. An empty path means that one is missing.
type programs struct {
	ssh, sshd, scp, rsync string
	keys                  string // directory with the configuration and the keys of ssh
}

// find returns the path of a program, also of one for administrators.
func find(name string) string {
	for _, n := range []string{name, filepath.Join("/usr/sbin", name)} {
		if p, err := exec.LookPath(n); err == nil {
			return p
		}
	}
	return ""
}

// findPrograms finds the programs and creates keys and configurations in the directory dir.
func findPrograms(ctx context.Context, dir string) (*programs, error) {
	p := &programs{ssh: find("ssh"), sshd: find("sshd"), scp: find("scp"), rsync: find("rsync"),
		keys: dir}
	conf := fmt.Sprintf("uid = root\ngid = root\nuse chroot = no\nport = %d\nreverse lookup = no\n",
		rsyncPort)
	if err := p.write("rsyncd.conf", conf); err != nil {
		return nil, err
	}
	if p.ssh == "" || p.sshd == "" {
		return p, nil
	}
	for _, name := range []string{"host", "user"} {
		gen := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", p.path(name))
		if out, err := gen.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("create a key for ssh: %w: %s", err, out)
		}
	}
	conf = strings.Join([]string{
		"Port " + strconv.Itoa(sshPort), "HostKey " + p.path("host"),
		"AuthorizedKeysFile " + p.path("user.pub"), "PidFile none", "StrictModes no", "UsePAM no",
		"PermitRootLogin prohibit-password", "UseDNS no", "PrintMotd no",
		"Subsystem sftp internal-sftp", "",
	}, "\n")
	if err := p.write("sshd_config", conf); err != nil {
		return nil, err
	}
	conf = strings.Join([]string{
		"IdentityFile " + p.path("user"), "IdentitiesOnly yes", "User root", "BatchMode yes",
		"Port " + strconv.Itoa(sshPort), "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null",
		"LogLevel ERROR", "",
	}, "\n")
	if err := p.write("ssh_config", conf); err != nil {
		return nil, err
	}
	return p, os.MkdirAll(sshdRun, 0o755)
}

func (p *programs) path(name string) string { return filepath.Join(p.keys, name) }

func (p *programs) write(name, text string) error {
	return os.WriteFile(p.path(name), []byte(text), 0o600)
}

// missing returns why a tool cannot be measured, or "".
func (p *programs) missing(tool string) string {
	need := map[string][]struct{ name, path string }{
		toolSCP:         {{"ssh", p.ssh}, {"sshd", p.sshd}, {"scp", p.scp}},
		toolRsync:       {{"ssh", p.ssh}, {"sshd", p.sshd}, {"rsync", p.rsync}},
		toolRsyncDaemon: {{"rsync", p.rsync}},
	}
	for _, n := range need[tool] {
		if n.path == "" {
			return n.name + " is not installed"
		}
	}
	return ""
}

// sshWorks returns an error if ssh cannot log in, for example because root's account is locked.
func (p *programs) sshWorks(ctx context.Context, from, to *host) (err error) {
	d, err := to.start(ctx, p.sshDaemon())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.end(ctx)) }()
	if err := d.listens(ctx, sshPort); err != nil {
		return err
	}
	c, err := from.start(ctx, []string{p.ssh, "-F", p.path("ssh_config"), to.addr(), "true"})
	if err != nil {
		return err
	}
	return c.wait(ctx)
}

func (p *programs) sshDaemon() []string {
	return []string{p.sshd, "-D", "-e", "-f", p.path("sshd_config")}
}

// rsyncDaemon returns the command of a daemon whose module "dst" is the directory dir.
func (p *programs) rsyncDaemon(dir string) ([]string, error) {
	text, err := os.ReadFile(p.path("rsyncd.conf"))
	if err != nil {
		return nil, err
	}
	module := fmt.Sprintf("[dst]\npath = %s\nread only = no\n", dir)
	if err := p.write("rsyncd-dst.conf", string(text)+module); err != nil {
		return nil, err
	}
	return []string{p.rsync, "--daemon", "--no-detach", "--config", p.path("rsyncd-dst.conf"),
		"--log-file", "/dev/null"}, nil
}
