// Package integration drives a running Heliograph broker with the official, unmodified Go client.
//
// The service URL comes from HELIOGRAPH_SERVICE_URL, the admin URL from HELIOGRAPH_HTTP_URL.
package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

// deadline bounds every single wait; a healthy broker needs a small part of it.
const deadline = 60 * time.Second

var serial atomic.Int64

// topicName returns a local name that no other test uses.
func topicName() string {
	return fmt.Sprintf("go-%d-%d", serial.Add(1), time.Now().UnixNano())
}

func serviceURL(t *testing.T) string {
	t.Helper()
	url := os.Getenv("HELIOGRAPH_SERVICE_URL")
	if url == "" {
		t.Fatal("HELIOGRAPH_SERVICE_URL is not set")
	}
	return url
}

// quiet logs nothing.
func quiet() log.Logger {
	return log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func newClient(t *testing.T) pulsar.Client {
	t.Helper()
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: serviceURL(t), OperationTimeout: deadline, Logger: quiet(),
	})
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(client.Close)
	return client
}

func subscribe(t *testing.T, client pulsar.Client, options pulsar.ConsumerOptions) pulsar.Consumer {
	t.Helper()
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	consumer, err := client.Subscribe(options)
	if err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	t.Cleanup(consumer.Close)
	return consumer
}

func produce(t *testing.T, client pulsar.Client, options pulsar.ProducerOptions) pulsar.Producer {
	t.Helper()
	producer, err := client.CreateProducer(options)
	if err != nil {
		t.Fatalf("producer: %v", err)
	}
	t.Cleanup(producer.Close)
	return producer
}

func send(t *testing.T, producer pulsar.Producer, message *pulsar.ProducerMessage) pulsar.MessageID {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	id, err := producer.Send(ctx, message)
	if err != nil {
		t.Fatalf("send: %v", err)
	}
	return id
}

// sendNumbers publishes the numbers [first, last) as text, waiting for all receipts at the end.
func sendNumbers(t *testing.T, producer pulsar.Producer, first, last int, key func(int) string) {
	t.Helper()
	results := make(chan error, last-first)
	for i := first; i < last; i++ {
		message := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i))}
		if key != nil {
			message.Key = key(i)
		}
		producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			results <- err
		})
	}
	if err := producer.Flush(); err != nil {
		t.Fatalf("flush: %v", err)
	}
	for i := first; i < last; i++ {
		if err := <-results; err != nil {
			t.Fatalf("send: %v", err)
		}
	}
}

func receive(t *testing.T, consumer pulsar.Consumer) pulsar.Message {
	t.Helper()
	message, ok := receiveWithin(t, consumer, deadline)
	if !ok {
		t.Fatalf("no message within %v", deadline)
	}
	return message
}

func receiveWithin(t *testing.T, consumer pulsar.Consumer, limit time.Duration) (pulsar.Message, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, false
		}
		t.Fatalf("receive: %v", err)
	}
	return message, true
}

// receiveShares takes the messages that the consumers get until there are as many as are wanted, each one's in order.
func receiveShares(t *testing.T, count int, consumers ...pulsar.Consumer) [][]pulsar.Message {
	t.Helper()
	shares := make([][]pulsar.Message, len(consumers))
	for total, end := 0, time.Now().Add(deadline); total < count; {
		for index, consumer := range consumers {
			for message, came := receiveWithin(t, consumer, 50*time.Millisecond); came; {
				shares[index] = append(shares[index], message)
				total++
				message, came = receiveWithin(t, consumer, 50*time.Millisecond)
			}
		}
		if total > count || time.Now().After(end) {
			t.Fatalf("%d messages came, want %d", total, count)
		}
	}
	return shares
}

func acknowledge(t *testing.T, consumer pulsar.Consumer, message pulsar.Message) {
	t.Helper()
	if err := consumer.Ack(message); err != nil {
		t.Fatalf("ack: %v", err)
	}
}

func expectNumbers(t *testing.T, consumer pulsar.Consumer, first, last int) {
	t.Helper()
	for i := first; i < last; i++ {
		message := receive(t, consumer)
		if got := string(message.Payload()); got != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", got, i)
		}
		acknowledge(t, consumer, message)
	}
}

func createPartitions(t *testing.T, topic string, partitions int) {
	t.Helper()
	url := fmt.Sprintf("%s/admin/v2/persistent/public/default/%s/partitions", os.Getenv("HELIOGRAPH_HTTP_URL"), topic)
	request, err := http.NewRequest(http.MethodPut, url, strings.NewReader(fmt.Sprint(partitions)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("create partitions: %v", err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("create partitions: %s %s", response.Status, bytes.TrimSpace(body))
	}
}
