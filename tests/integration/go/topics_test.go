package integration

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// javaHash is what this client takes for JavaStringHash: unlike Java's, it does not clear the sign.
func javaHash(key string) uint32 {
	var hash uint32
	for _, character := range key {
		hash = 31*hash + uint32(character)
	}
	return hash
}

// Partitions of the keys by Murmur3_32Hash: (murmur3(key) & 0x7fffffff) % 3, from an implementation in Python.
var murmurPlaces = map[string]int32{
	"key-0": 2, "key-1": 1, "key-2": 1, "key-3": 2, "key-4": 1, "key-5": 1,
	"key-6": 1, "key-7": 2, "key-8": 1, "key-9": 2, "key-10": 1, "key-11": 1,
}

// partitionsOf publishes 60 messages of 12 keys to 3 partitions; it returns the partition of each key.
func partitionsOf(t *testing.T, client pulsar.Client, options pulsar.ProducerOptions) map[string]int32 {
	t.Helper()
	options.Topic, options.DisableBatching = topicName(), true
	createPartitions(t, options.Topic, 3)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: options.Topic, Type: pulsar.Shared})
	sendNumbers(t, produce(t, client, options), 0, 60, func(i int) string { return fmt.Sprintf("key-%d", i%12) })
	places := map[string]int32{}
	for i := 0; i < 60; i++ {
		message := receive(t, consumer)
		place := message.ID().PartitionIdx()
		if other, known := places[message.Key()]; known && other != place {
			t.Fatalf("%s is in the partitions %d and %d", message.Key(), other, place)
		}
		places[message.Key()] = place
	}
	return places
}

func TestKeysGoToPartitionsByTheirHash(t *testing.T) {
	client := newClient(t)
	byJava := partitionsOf(t, client, pulsar.ProducerOptions{HashingScheme: pulsar.JavaStringHash})
	for key, place := range byJava {
		if want := int32(javaHash(key) % 3); place != want {
			t.Fatalf("JavaStringHash: %s is in partition %d, want %d", key, place, want)
		}
	}
	byMurmur := partitionsOf(t, client, pulsar.ProducerOptions{HashingScheme: pulsar.Murmur3_32Hash})
	if len(byMurmur) != 12 || fmt.Sprint(byMurmur) == fmt.Sprint(byJava) {
		t.Fatalf("Murmur3_32Hash: %v", byMurmur)
	}
	for key, place := range byMurmur {
		if murmurPlaces[key] != place {
			t.Fatalf("Murmur3_32Hash: %s is in partition %d, want %d", key, place, murmurPlaces[key])
		}
	}
}

func TestSinglePartitionKeepsTheOrder(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	createPartitions(t, topic, 3)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, MessageRouter: func(*pulsar.ProducerMessage, pulsar.TopicMetadata) int { return 1 },
	})
	sendNumbers(t, producer, 0, 50, nil)
	for i := 0; i < 50; i++ {
		message := receive(t, consumer)
		if got := string(message.Payload()); got != fmt.Sprint(i) || message.ID().PartitionIdx() != 1 {
			t.Fatalf("got %q from partition %d, want %d", got, message.ID().PartitionIdx(), i)
		}
	}
}

func TestListOfTopics(t *testing.T) {
	client := newClient(t)
	topics := []string{topicName(), topicName(), topicName()}
	createPartitions(t, topics[2], 2)
	// The client replaces the names in the list that it is given.
	list := append([]string{}, topics...)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topics: list, Type: pulsar.Shared})
	for _, topic := range topics {
		sendNumbers(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), 0, 10, nil)
	}
	counts := map[string]int{}
	for i := 0; i < 30; i++ {
		message := receive(t, consumer)
		local, _, _ := strings.Cut(strings.TrimPrefix(message.Topic(), "persistent://public/default/"), "-partition-")
		counts[local]++
		acknowledge(t, consumer, message)
	}
	for _, topic := range topics {
		if counts[topic] != 10 {
			t.Fatalf("messages by topic: %v", counts)
		}
	}
}

func TestChunksOnFailover(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, AckWithResponse: true}
	options.Name = "a"
	first := subscribe(t, client, options)
	options.Name = "b"
	second := subscribe(t, client, options)
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 64 << 10,
	})
	payloads := [][]byte{noise(300 << 10), noise(200 << 10), noise(500 << 10)}
	for _, payload := range payloads {
		send(t, producer, &pulsar.ProducerMessage{Payload: payload})
	}
	message := receive(t, first)
	if !bytes.Equal(message.Payload(), payloads[0]) {
		t.Fatal("the first message differs")
	}
	acknowledge(t, first, message)
	first.Close()
	for i, payload := range payloads[1:] {
		message := receive(t, second)
		if !bytes.Equal(message.Payload(), payload) {
			t.Fatalf("message %d differs after the takeover", i+1)
		}
		acknowledge(t, second, message)
	}
}

func TestMessagesOfABatchHaveTTLsOfTheirOwn(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	subscribe(t, client, pulsar.ConsumerOptions{Topic: topic}).Close()
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	for i := 0; i < 100; i++ {
		message := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i))}
		if i%2 == 0 {
			message.Properties = map[string]string{"x-message-ttl": "1"}
		}
		producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Errorf("send: %v", err)
			}
		})
	}
	if err := producer.Flush(); err != nil {
		t.Fatal(err)
	}
	// A quick machine could be here within the millisecond that they live.
	published := time.Now()
	eventually(t, "their time is over", func() bool { return time.Since(published) > 10*time.Millisecond })
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	for i := 1; i < 100; i += 2 {
		if got := string(receive(t, consumer).Payload()); got != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", got, i)
		}
	}
}

func TestBytesSchemaHasAVersion(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	schema := pulsar.NewBytesSchema(nil)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: schema})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
	send(t, producer, &pulsar.ProducerMessage{Value: []byte("value"), Key: "k"})
	message := receive(t, consumer)
	var value []byte
	if err := message.GetSchemaValue(&value); err != nil || string(value) != "value" {
		t.Fatalf("value %q, %v", value, err)
	}
	if len(message.SchemaVersion()) == 0 {
		t.Fatal("the message has no schema version")
	}
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: schema, SchemaValueType: reflect.TypeOf([]byte{}),
	})
	if err != nil {
		t.Fatalf("table view: %v", err)
	}
	defer view.Close()
	if got, ok := view.Get("k").([]byte); !ok || string(got) != "value" {
		t.Fatalf("the table view has %v", view.Entries())
	}
}

func TestTransactionsAreRefused(t *testing.T) {
	_, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: serviceURL(t), EnableTransaction: true, OperationTimeout: deadline, Logger: quiet(),
	})
	if err == nil || !strings.Contains(err.Error(), "doesn't enable the transaction coordinator") {
		t.Fatalf("a client with transactions: %v", err)
	}
	// It can work without them.
	newClient(t)
}

// The three examples of the client's README, with their settings.
func TestReadmeExamples(t *testing.T) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: serviceURL(t), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topic := topicName()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "my-sub", Type: pulsar.Shared,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	if got := string(receive(t, consumer).Payload()); got != "hello" {
		t.Fatalf("received %q", got)
	}
	reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var read []string
	for reader.HasNext() {
		message, err := reader.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, string(message.Payload()))
	}
	if len(read) != 1 || read[0] != "hello" {
		t.Fatalf("read %q", read)
	}
}
