// Sends numbers in bursts, so that many are in flight, while a test does something to the broker, until its input ends: inflight
// SERVICE-URL TOPIC. Prints a line for each receipt.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	window = 1000
	burst  = 200
	size   = 50
)

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func main() {
	quiet := log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], OperationTimeout: 3 * time.Second, Logger: quiet,
	})
	if err != nil {
		fail(err)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: os.Args[2], Name: "p", SendTimeout: -1, DisableBatching: true, MaxPendingMessages: window,
	})
	if err != nil {
		fail(err)
	}
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	padding := strings.Repeat(".", size)
	for number := 0; !ended.Load(); number++ {
		message := &pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "%d %s", number, padding)}
		producer.SendAsync(context.Background(), message,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					fail(err)
				}
				fmt.Println("sent", number)
			})
		if number%burst == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if err := producer.Flush(); err != nil {
		fail(err)
	}
	os.Exit(0)
}
