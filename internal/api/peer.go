// SPDX-License-Identifier: Apache-2.0

package api

import (
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// guarded hands on only connections from root and from the daemon's own user. The
// socket's mode says the same, but a mode can be changed by whoever may write the
// directory, and credentials cannot.
type guarded struct{ *net.UnixListener }

// Accept waits for the next connection that may come in.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		conn, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && (uid == 0 || uid == uint32(os.Getuid())) {
			return conn, nil
		}
		slog.Warn("connection refused", "uid", uid, "error", err)
		conn.Close()
	}
}

// peerUID is the user at the other end when it connected (SO_PEERCRED, unix(7)).
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return 0, e
	}
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
