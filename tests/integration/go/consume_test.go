package integration

import (
	"fmt"
	"net/http"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var types = map[string]pulsar.SubscriptionType{
	"Exclusive": pulsar.Exclusive,
	"Shared":    pulsar.Shared,
	"Failover":  pulsar.Failover,
	"KeyShared": pulsar.KeyShared,
}

func TestSubscriptionTypes(t *testing.T) {
	client := newClient(t)
	for name, kind := range types {
		for _, batching := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/batching=%v", name, batching), func(t *testing.T) {
				topic := topicName()
				consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Type: kind, AckWithResponse: true})
				producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: !batching})
				sendNumbers(t, producer, 0, 100, func(int) string { return "k" })
				expectNumbers(t, consumer, 0, 100)
				if _, more := receiveWithin(t, consumer, 50*time.Millisecond); more {
					t.Fatal("a message came twice")
				}
			})
		}
	}
}

func TestMessageCarriesWhatWasSet(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Name: "go-producer"})
	event := time.UnixMilli(1_234_567_890_123)
	id := send(t, producer, &pulsar.ProducerMessage{
		Payload: []byte("p"), Key: "k", OrderingKey: "o", EventTime: event, Properties: map[string]string{"a": "1"},
	})
	message := receive(t, consumer)
	if message.Key() != "k" || message.OrderingKey() != "o" || !message.EventTime().Equal(event) ||
		message.Properties()["a"] != "1" || message.ProducerName() != "go-producer" ||
		message.ID().EntryID() != id.EntryID() || message.ID().LedgerID() != id.LedgerID() ||
		message.Topic() != "persistent://public/default/"+topic {
		t.Fatalf("message differs from what was sent: %v %v", message, id)
	}
}

func TestExclusiveRefusesASecondConsumer(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	if _, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"}); err == nil {
		t.Fatal("a second exclusive consumer was let in")
	} else if !strings.Contains(err.Error(), "ConsumerBusy") {
		t.Fatalf("refused, but as %v", err)
	}
}

func TestSharedSpreadsAndRedelivers(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, ReceiverQueueSize: 10}
	first, second := subscribe(t, client, options), subscribe(t, client, options)
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 20, nil)
	shares := receiveShares(t, 20, first, second)
	lost, kept := shares[0], shares[1]
	if len(kept) == 0 || len(lost) == 0 {
		t.Fatalf("shares of %d and %d messages", len(lost), len(kept))
	}
	first.Close()
	again := map[string]bool{}
	for range lost {
		again[string(receive(t, second).Payload())] = true
	}
	for _, message := range lost {
		if !again[string(message.Payload())] {
			t.Fatalf("%s did not come again", message.Payload())
		}
	}
}

func TestFailoverTakesOver(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover}
	options.Name = "a"
	first := subscribe(t, client, options)
	options.Name = "b"
	second := subscribe(t, client, options)
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 5, nil)
	expectNumbers(t, first, 0, 3)
	first.Close()
	sendNumbers(t, producer, 5, 8, nil)
	// Acks are grouped by the client and may be lost with it: what comes again starts at or before 3, in order.
	next := -1
	for next != 8 {
		message := receive(t, second)
		var number int
		if _, err := fmt.Sscan(string(message.Payload()), &number); err != nil {
			t.Fatal(err)
		}
		if next == -1 {
			if number > 3 {
				t.Fatalf("message 3 was skipped, first is %d", number)
			}
		} else if number != next {
			t.Fatalf("got %d, want %d", number, next)
		}
		next = number + 1
	}
}

func TestKeySharedWithKeyBasedBatching(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared}
	consumers := []pulsar.Consumer{subscribe(t, client, options), subscribe(t, client, options)}
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder, BatchingMaxPublishDelay: 200 * time.Millisecond,
	})
	sendNumbers(t, producer, 0, 300, func(i int) string { return fmt.Sprintf("k%d", i%30) })
	holder := map[string]int{}
	last := map[string]int{}
	total := 0
	for index, messages := range receiveShares(t, 300, consumers...) {
		if len(messages) == 0 {
			t.Fatalf("consumer %d has no key", index)
		}
		for _, message := range messages {
			var number int
			if _, err := fmt.Sscan(string(message.Payload()), &number); err != nil {
				t.Fatal(err)
			}
			if other, known := holder[message.Key()]; known && other != index {
				t.Fatalf("key %s went to both consumers", message.Key())
			}
			if before, known := last[message.Key()]; known && number != before+30 {
				t.Fatalf("key %s: %d after %d", message.Key(), number, before)
			}
			holder[message.Key()], last[message.Key()] = index, number
			total++
		}
	}
	if total != 300 || len(holder) != 30 {
		t.Fatalf("%d messages of %d keys", total, len(holder))
	}
}

func TestNackRedeliversWithCount(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("x")})
	for count := uint32(0); count < 3; count++ {
		message := receive(t, consumer)
		if message.RedeliveryCount() != count {
			t.Fatalf("redelivery count %d, want %d", message.RedeliveryCount(), count)
		}
		consumer.Nack(message)
	}
}

func TestDeadLetterTopic(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	dead := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic + "-dead", Type: pulsar.Shared})
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead", InitialSubscriptionName: "keeper"},
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("poison")})
	for i := 0; i < 2; i++ {
		consumer.Nack(receive(t, consumer))
	}
	if got := string(receive(t, dead).Payload()); got != "poison" {
		t.Fatalf("dead letter is %q", got)
	}
	keeper := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic + "-dead", SubscriptionName: "keeper", Type: pulsar.Shared,
	})
	if got := string(receive(t, keeper).Payload()); got != "poison" {
		t.Fatalf("the initial subscription has %q", got)
	}
}

func TestRetryLetterTopic(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{
			MaxDeliveries: 3, DeadLetterTopic: topic + "-dead", RetryLetterTopic: topic + "-retry",
		},
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("later")})
	consumer.ReconsumeLater(receive(t, consumer), 300*time.Millisecond)
	message := receive(t, consumer)
	if string(message.Payload()) != "later" || !strings.HasSuffix(message.Topic(), "-retry") {
		t.Fatalf("got %q from %s", message.Payload(), message.Topic())
	}
}

func TestAckWithResponseAndBatchIndex(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, AckWithResponse: true, EnableBatchIndexAcknowledgment: true,
	}
	consumer, err := client.Subscribe(func() pulsar.ConsumerOptions { options.SubscriptionName = "s"; return options }())
	if err != nil {
		t.Fatal(err)
	}
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: time.Hour})
	sendNumbers(t, producer, 0, 10, nil)
	for i := 0; i < 10; i++ {
		message := receive(t, consumer)
		if message.ID().BatchSize() != 10 {
			t.Fatalf("not one batch: size %d", message.ID().BatchSize())
		}
		if i%2 == 0 {
			acknowledge(t, consumer, message)
		}
	}
	consumer.Close()
	again := subscribe(t, client, options)
	var got []string
	for i := 0; i < 5; i++ {
		message := receive(t, again)
		got = append(got, string(message.Payload()))
		acknowledge(t, again, message)
	}
	sort.Strings(got)
	if strings.Join(got, " ") != "1 3 5 7 9" {
		t.Fatalf("came again: %v", got)
	}
}

func TestCumulativeAck(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	options := pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", AckWithResponse: true}
	consumer, err := client.Subscribe(options)
	if err != nil {
		t.Fatal(err)
	}
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 0, 10, nil)
	var sixth pulsar.Message
	for i := 0; i < 6; i++ {
		sixth = receive(t, consumer)
	}
	if err := consumer.AckCumulative(sixth); err != nil {
		t.Fatalf("cumulative ack: %v", err)
	}
	consumer.Close()
	expectNumbers(t, subscribe(t, client, options), 6, 10)
}

func TestDelayedDelivery(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("much later"), DeliverAfter: time.Hour})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("now")})
	// What is delayed holds nothing up.
	if got := string(receive(t, consumer).Payload()); got != "now" {
		t.Fatalf("first came %q", got)
	}
	due := time.Now().Round(0).Add(time.Second)
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("later"), DeliverAt: due})
	if got := string(receive(t, consumer).Payload()); got != "later" {
		t.Fatalf("then came %q", got)
	}
	if early := time.Until(due); early > 10*time.Millisecond {
		t.Fatalf("came %v before it was due", early)
	}
}

func TestUnsubscribe(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("old")})
	receive(t, consumer)
	if err := consumer.Unsubscribe(); err != nil {
		t.Fatalf("unsubscribe: %v", err)
	}
	again := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("new")})
	if got := string(receive(t, again).Payload()); got != "new" {
		t.Fatalf("got %q", got)
	}
}

func TestNonPersistentTopic(t *testing.T) {
	client := newClient(t)
	name := topicName()
	topic := "non-persistent://public/default/" + name
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	// The client returns from subscribing before it asks for messages; the topic drops what nobody has asked for.
	eventually(t, "the consumer's permits", func() bool {
		var stats topicStats
		restful(t, http.MethodGet, "non-persistent/public/default/"+name+"/stats", "", &stats)
		consumers := stats.Subscriptions["s"].Consumers
		return len(consumers) == 1 && consumers[0].AvailablePermits > 0
	})
	sendNumbers(t, producer, 0, 10, nil)
	expectNumbers(t, consumer, 0, 10)
}
