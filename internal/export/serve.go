// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// look is how often Serve asks where to listen.
const look = time.Second

// Serve answers scrapes at the place that where returns, until ctx ends: "ADDRESS:PORT", the path of
// a unix socket, or "" for none. It follows when that changes, and tries again while it cannot listen:
// forwarding is worth more than its figures, so neither is an error.
func Serve(ctx context.Context, log *slog.Logger, where func() string, handler http.Handler) {
	failed := ""
	for ctx.Err() == nil {
		place := where()
		err := error(nil)
		if place != "" {
			err = serve(ctx, log, place, where, handler)
		}
		switch {
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			log.Error("metrics cannot be served; trying again", "listen", place, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
}

// serve answers at one place until it is no longer the right one.
func serve(ctx context.Context, log *slog.Logger, place string, where func() string, handler http.Handler) error {
	l, err := listen(place)
	if err != nil {
		return err
	}
	log.Info("metrics", "listen", place)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 5 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	go func() {
		for ctx.Err() == nil && where() == place {
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
		}
		server.Close()
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listen makes a socket of a path readable by all local users, as a port of the loopback is.
func listen(place string) (net.Listener, error) {
	if !strings.HasPrefix(place, "/") {
		return net.Listen("tcp", place)
	}
	info, err := os.Lstat(place)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s: something else than a socket is there", place)
	case err == nil:
		if err := os.Remove(place); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	l, err := net.Listen("unix", place)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(place, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
