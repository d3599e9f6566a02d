package integration

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// keptNumbers publishes 0…9 one by one to a topic whose messages a subscription keeps.
func keptNumbers(t *testing.T, client pulsar.Client) (string, []pulsar.MessageID) {
	t.Helper()
	topic := topicName()
	subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "keeper"})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	var ids []pulsar.MessageID
	for i := 0; i < 10; i++ {
		ids = append(ids, send(t, producer, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i))}))
	}
	return topic, ids
}

func newReader(t *testing.T, client pulsar.Client, options pulsar.ReaderOptions) pulsar.Reader {
	t.Helper()
	reader, err := client.CreateReader(options)
	if err != nil {
		t.Fatalf("reader: %v", err)
	}
	t.Cleanup(reader.Close)
	return reader
}

func expectRead(t *testing.T, reader pulsar.Reader, first, last int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for i := first; i < last; i++ {
		if !reader.HasNext() {
			t.Fatalf("nothing left before %d", i)
		}
		message, err := reader.Next(ctx)
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		if got := string(message.Payload()); got != fmt.Sprint(i) {
			t.Fatalf("read %q, want %d", got, i)
		}
	}
	if reader.HasNext() {
		t.Fatalf("more than %d messages", last-first)
	}
}

func TestReader(t *testing.T) {
	client := newClient(t)
	topic, ids := keptNumbers(t, client)
	for _, c := range []struct {
		name      string
		start     pulsar.MessageID
		inclusive bool
		first     int
	}{
		{"earliest", pulsar.EarliestMessageID(), false, 0},
		{"latest", pulsar.LatestMessageID(), false, 10},
		{"latest inclusive", pulsar.LatestMessageID(), true, 9},
		{"after an id", ids[4], false, 5},
		{"from an id", ids[4], true, 4},
		{"after the last", ids[9], false, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			reader := newReader(t, client, pulsar.ReaderOptions{
				Topic: topic, StartMessageID: c.start, StartMessageIDInclusive: c.inclusive,
			})
			expectRead(t, reader, c.first, 10)
		})
	}
}

func TestReaderSeek(t *testing.T) {
	client := newClient(t)
	topic, ids := keptNumbers(t, client)
	reader := newReader(t, client, pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), StartMessageIDInclusive: true,
	})
	expectRead(t, reader, 0, 10)
	// By time first: after a seek to an id this client drops by itself what is before that id.
	if err := reader.SeekByTime(time.Now().Add(-time.Hour)); err != nil {
		t.Fatalf("seek by time: %v", err)
	}
	expectRead(t, reader, 0, 10)
	if err := reader.Seek(ids[6]); err != nil {
		t.Fatalf("seek: %v", err)
	}
	expectRead(t, reader, 6, 10)
}

func TestConsumerSeek(t *testing.T) {
	client := newClient(t)
	for name, kind := range types {
		t.Run(name, func(t *testing.T) {
			topic, ids := keptNumbers(t, client)
			consumer := subscribe(t, client, pulsar.ConsumerOptions{
				Topic: topic, Type: kind, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
				StartMessageIDInclusive: true,
			})
			expectNumbers(t, consumer, 0, 10)
			// By time first: after a seek to an id this client drops by itself what is before that id.
			if err := consumer.SeekByTime(time.Now().Add(-time.Hour)); err != nil {
				t.Fatalf("seek by time: %v", err)
			}
			expectNumbers(t, consumer, 0, 10)
			if err := consumer.Seek(ids[3]); err != nil {
				t.Fatalf("seek: %v", err)
			}
			expectNumbers(t, consumer, 3, 10)
		})
	}
}

func TestLastMessageIDs(t *testing.T) {
	client := newClient(t)
	topic, ids := keptNumbers(t, client)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	last, err := consumer.GetLastMessageIDs()
	if err != nil || len(last) != 1 {
		t.Fatalf("last message ids: %v, %v", last, err)
	}
	if last[0].EntryID() != ids[9].EntryID() || last[0].LedgerID() != ids[9].LedgerID() {
		t.Fatalf("last is %v, want %v", last[0], ids[9])
	}
}

func TestPartitionedTopic(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	createPartitions(t, topic, 3)
	names, err := client.TopicPartitions(topic)
	if err != nil || len(names) != 3 {
		t.Fatalf("partitions: %v, %v", names, err)
	}
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 30, func(i int) string { return fmt.Sprint(i) })
	seen := map[int32]bool{}
	for i := 0; i < 30; i++ {
		message := receive(t, consumer)
		seen[message.ID().PartitionIdx()] = true
		acknowledge(t, consumer, message)
	}
	if len(seen) != 3 {
		t.Fatalf("data in partitions %v only", seen)
	}
}

func TestRegexSubscription(t *testing.T) {
	client := newClient(t)
	prefix := topicName()
	first := produce(t, client, pulsar.ProducerOptions{Topic: prefix + "-one"})
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		TopicsPattern: "persistent://public/default/" + prefix + "-.*", AutoDiscoveryPeriod: 500 * time.Millisecond,
	})
	send(t, first, &pulsar.ProducerMessage{Payload: []byte("one")})
	if got := string(receive(t, consumer).Payload()); got != "one" {
		t.Fatalf("got %q", got)
	}
	late := produce(t, client, pulsar.ProducerOptions{Topic: prefix + "-late"})
	for end := time.Now().Add(deadline); ; {
		send(t, late, &pulsar.ProducerMessage{Payload: []byte("late")})
		if message, ok := receiveWithin(t, consumer, 100*time.Millisecond); ok {
			if string(message.Payload()) != "late" {
				t.Fatalf("got %q", message.Payload())
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("the topic that came later was not picked up")
		}
	}
}

func TestTableView(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	schema := pulsar.NewStringSchema(nil)
	subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "keeper", Schema: schema})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
	sendNumbers(t, producer, 0, 30, func(i int) string { return fmt.Sprintf("k%d", i%3) })
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: schema, SchemaValueType: reflect.TypeOf(new(string)),
	})
	if err != nil {
		t.Fatalf("table view: %v", err)
	}
	defer view.Close()
	if view.Size() != 3 {
		t.Fatalf("table view has %d keys", view.Size())
	}
}
