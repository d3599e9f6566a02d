// Sends numbers and receives them while a test replaces everything that secures the broker, until its input ends:
// rotation SERVICE-URL TRUSTED TOPIC TOKEN-FILE, or … TOPIC CERTIFICATE KEY, or … TOPIC ISSUER ISSUER-TRUSTED CREDENTIALS,
// whose authority SSL_CERT_FILE names. Prints a line for each token of a file, receipt and message.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

var printing sync.Mutex

func say(kind string, number int64) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(kind, number)
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func authentication(files []string) pulsar.Authentication {
	switch len(files) {
	case 2:
		return pulsar.NewAuthenticationTLS(files[0], files[1])
	case 3:
		return pulsar.NewAuthenticationOAuth2(map[string]string{
			"type": "client_credentials", "issuerUrl": files[0], "audience": "heliograph",
			"privateKey": "file://" + files[2],
		})
	}
	return pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
		token, err := os.ReadFile(files[0])
		say("asked", 0)
		return strings.TrimSpace(string(token)), err
	})
}

func main() {
	url, trusted, topic, files := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	quiet := log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	client := must(pulsar.NewClient(pulsar.ClientOptions{
		URL: url, TLSTrustCertsFilePath: trusted, TLSValidateHostname: true, Logger: quiet,
		Authentication: authentication(files),
	}))
	consumer := must(client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"}))
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Name: "p", SendTimeout: -1}))
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	var sent, received atomic.Int64
	go func() {
		for !ended.Load() {
			number := sent.Load()
			text := []byte(strconv.FormatInt(number, 10))
			must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: text}))
			say("sent", number)
			sent.Add(1)
			time.Sleep(time.Millisecond)
		}
		for received.Load() < sent.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		os.Exit(0)
	}()
	for {
		message := must(consumer.Receive(context.Background()))
		must(0, consumer.Ack(message))
		number := must(strconv.ParseInt(string(message.Payload()), 10, 64))
		say("received", number)
		if number == received.Load() {
			received.Add(1)
		}
	}
}
