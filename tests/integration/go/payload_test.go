package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	mathrand "math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

func noise(size int) []byte {
	payload := make([]byte, size)
	mathrand.New(mathrand.NewSource(int64(size))).Read(payload)
	return payload
}

func TestCompression(t *testing.T) {
	client := newClient(t)
	kinds := map[string]pulsar.CompressionType{
		"LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
	}
	sent := [][]byte{[]byte("x"), bytes.Repeat([]byte("abc"), 10_000), noise(100_000)}
	for name, kind := range kinds {
		for _, batching := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/batching=%v", name, batching), func(t *testing.T) {
				topic := topicName()
				consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
				producer := produce(t, client, pulsar.ProducerOptions{
					Topic: topic, CompressionType: kind, DisableBatching: !batching,
					BatchingMaxPublishDelay: 50 * time.Millisecond,
				})
				for _, payload := range sent {
					producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload},
						func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
							if err != nil {
								t.Errorf("send: %v", err)
							}
						})
				}
				if err := producer.Flush(); err != nil {
					t.Fatal(err)
				}
				for i, payload := range sent {
					if got := receive(t, consumer).Payload(); !bytes.Equal(got, payload) {
						t.Fatalf("payload %d differs", i)
					}
				}
			})
		}
	}
}

func TestChunkedMessage(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true})
	payload := noise(20 << 20)
	send(t, producer, &pulsar.ProducerMessage{Payload: payload})
	if !bytes.Equal(receive(t, consumer).Payload(), payload) {
		t.Fatal("the chunked message differs")
	}
}

func TestMessageAboveTheLimitIsRefused(t *testing.T) {
	client := newClient(t)
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topicName(), DisableBatching: true})
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: make([]byte, 5<<20+1)}); err == nil {
		t.Fatal("a message above the limit was taken")
	}
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("small")})
}

func keyReader(t *testing.T) crypto.KeyReader {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return crypto.NewFileKeyReader(
		write("public.pem", "PUBLIC KEY", public),
		write("private.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private)),
	)
}

func TestEncryption(t *testing.T) {
	client := newClient(t)
	keys := keyReader(t)
	for _, batching := range []bool{false, true} {
		t.Run(fmt.Sprintf("batching=%v", batching), func(t *testing.T) {
			topic := topicName()
			consumer := subscribe(t, client, pulsar.ConsumerOptions{
				Topic: topic, Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
			})
			sealed := subscribe(t, client, pulsar.ConsumerOptions{
				Topic: topic, SubscriptionName: "sealed", Decryption: &pulsar.MessageDecryptionInfo{
					KeyReader: keyReader(t), ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
				},
			})
			producer := produce(t, client, pulsar.ProducerOptions{
				Topic: topic, DisableBatching: !batching,
				Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"the-key"}},
			})
			sendNumbers(t, producer, 0, 10, nil)
			expectNumbers(t, consumer, 0, 10)
			if context := receive(t, sealed).GetEncryptionContext(); context == nil || len(context.Keys) != 1 {
				t.Fatalf("encryption context of the sealed message: %v", context)
			}
		})
	}
}

const flightSchema = `{"type":"record","name":"Flight","fields":[` +
	`{"name":"carrier","type":"string"},{"name":"distance","type":"int"}]}`
const evolvedSchema = `{"type":"record","name":"Flight","fields":[` +
	`{"name":"carrier","type":"string"},{"name":"distance","type":"int"},` +
	`{"name":"gate","type":["null","string"],"default":null}]}`
const otherSchema = `{"type":"record","name":"Flight","fields":[{"name":"temperature","type":"double"}]}`

type flight struct {
	Carrier  string `json:"carrier" avro:"carrier"`
	Distance int    `json:"distance" avro:"distance"`
}

func TestSchemas(t *testing.T) {
	client := newClient(t)
	makers := map[string]func(string) pulsar.Schema{
		"JSON": func(definition string) pulsar.Schema { return pulsar.NewJSONSchema(definition, nil) },
		"Avro": func(definition string) pulsar.Schema { return pulsar.NewAvroSchema(definition, nil) },
	}
	for name, newSchema := range makers {
		t.Run(name, func(t *testing.T) {
			topic := topicName()
			schema := newSchema(flightSchema)
			consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: schema})
			producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
			want := flight{Carrier: "UA", Distance: 1400}
			send(t, producer, &pulsar.ProducerMessage{Value: &want})
			message := receive(t, consumer)
			var got flight
			if err := message.GetSchemaValue(&got); err != nil || got != want {
				t.Fatalf("got %v, %v", got, err)
			}
			if version := message.SchemaVersion(); !bytes.Equal(version, make([]byte, 8)) {
				t.Fatalf("first version is %x", version)
			}
			produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: newSchema(evolvedSchema)})
			_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: newSchema(otherSchema)})
			if err == nil || !strings.Contains(err.Error(), "IncompatibleSchema") {
				t.Fatalf("an incompatible schema was answered with: %v", err)
			}
		})
	}
}

func TestAccessModes(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	first := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	})
	if _, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic}); err == nil {
		t.Fatal("a second producer was let in beside an exclusive one")
	}
	waiting := make(chan error, 1)
	go func() {
		producer, err := newWaitingProducer(client, topic)
		if err == nil {
			_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("mine")})
			producer.Close()
		}
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Fatalf("the waiting producer did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	first.Close()
	select {
	case err := <-waiting:
		if err != nil {
			t.Fatalf("the waiting producer: %v", err)
		}
	case <-time.After(deadline):
		t.Fatal("the waiting producer did not take over")
	}
}

func newWaitingProducer(client pulsar.Client, topic string) (pulsar.Producer, error) {
	return client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
	})
}
