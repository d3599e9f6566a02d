//go:build tls

package integration

import (
	"context"
	"os"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
)

// The service URL is one of TLS here, so this test is run by itself: see tests/integration/test_tls.py.
func TestTLS(t *testing.T) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:                   serviceURL(t),
		OperationTimeout:      deadline,
		TLSTrustCertsFilePath: os.Getenv("HELIOGRAPH_TRUSTED"),
		TLSValidateHostname:   true,
		Logger:                quiet(),
	})
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	defer client.Close()
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatalf("producer: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if _, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("by TLS")}); err != nil {
		t.Fatalf("send: %v", err)
	}
	message, err := consumer.Receive(ctx)
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	if string(message.Payload()) != "by TLS" {
		t.Fatalf("received %q", message.Payload())
	}
}
