// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestMain also plays the processes that the tests start: a lab's owner that
// dies, and a daemon.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("LAB_TEST_OWNER") != "":
		crash()
	case len(os.Args) > 1 && os.Args[1] == "run":
		serve(os.Args[slices.Index(os.Args, "--state")+1])
	default:
		os.Exit(m.Run())
	}
}

// crash makes a lab, starts something in it, and ends without a word.
func crash() {
	f, err := Firewall(FirewallOptions{Name: os.Getenv("LAB_TEST_OWNER")})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	cmd := f.LAN.NS.Command(context.Background(), "sh", "-c", "echo there; exec sleep 1000")
	there, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = there.Read(make([]byte, 6)) // it has entered the namespace
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("%s %s %d", f.Dir(), f.LAN.NS.Name(), cmd.Process.Pid)
	os.Exit(0)
}

// serve is as much of a daemon as the lab knows of.
func serve(state string) {
	if os.Getenv("LAB_TEST_BROKEN") != "" {
		fmt.Fprintln(os.Stderr, "shunt: no such port")
		os.Exit(1)
	}
	time.Sleep(50 * time.Millisecond)
	os.MkdirAll(state, 0o700)
	os.Remove(filepath.Join(state, "api.sock")) // of the one that was killed
	l, err := net.Listen("unix", filepath.Join(state, "api.sock"))
	if err != nil {
		panic(err)
	}
	http.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "{}") })
	http.HandleFunc("POST /v1/stop", func(http.ResponseWriter, *http.Request) {
		time.AfterFunc(10*time.Millisecond, func() { os.Exit(0) })
	})
	fmt.Println("ready")
	http.Serve(l, nil)
}
