package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Properties that the client gives a message on its way through the retry topic.
const (
	realTopic       = "REAL_TOPIC"
	originMessageID = "ORIGIN_MESSAGE_ID"
	reconsumeTimes  = "RECONSUMETIMES"
	delayTime       = "DELAY_TIME"
)

func expectProperties(t *testing.T, message pulsar.Message, expected map[string]string) {
	t.Helper()
	for name, value := range expected {
		if got := message.Properties()[name]; got != value {
			t.Fatalf("%s is %q, want %q, in %v", name, got, value, message.Properties())
		}
	}
}

func expectMessage(t *testing.T, message pulsar.Message, payload, key string) {
	t.Helper()
	if string(message.Payload()) != payload || message.Key() != key {
		t.Fatalf("got %q with the key %q, want %q with %q", message.Payload(), message.Key(), payload, key)
	}
}

// chain returns the names of a topic and a subscription of its own, and a consumer of the dead letter topic that the
// client gives them by default, before there are letters.
func chain(t *testing.T, client pulsar.Client) (topic, subscription string, dead pulsar.Consumer) {
	t.Helper()
	local := topicName()
	topic, subscription = "persistent://public/default/"+local, "sub-"+local
	dead = subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic + "-" + subscription + "-DLQ", SubscriptionName: "letters", Type: pulsar.Shared,
	})
	return topic, subscription, dead
}

func TestRetryChainWithDefaultNames(t *testing.T) {
	for _, name := range []string{"Shared", "KeyShared"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			topic, subscription, dead := chain(t, client)
			consumer := subscribe(t, client, pulsar.ConsumerOptions{
				Topic: topic, SubscriptionName: subscription, Type: types[name],
				RetryEnable: true, DLQ: &pulsar.DLQPolicy{MaxDeliveries: 3},
			})
			producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
			id := send(t, producer, &pulsar.ProducerMessage{
				Payload: []byte("later"), Key: "k", Properties: map[string]string{"own": "1"},
			})
			expected := map[string]string{
				"own": "1", realTopic: topic,
				originMessageID: fmt.Sprintf("%d:%d:%d", id.LedgerID(), id.EntryID(), id.PartitionIdx()),
			}
			message := receive(t, consumer)
			for times := 1; times <= 3; times++ {
				delay := time.Duration(times) * 200 * time.Millisecond
				// Round strips the monotonic clock: the broker goes by the time of day.
				due := time.Now().Round(0).Add(delay)
				consumer.ReconsumeLaterWithCustomProperties(
					message, map[string]string{"attempt": fmt.Sprint(times)}, delay)
				message = receive(t, consumer)
				// Times on the wire have whole milliseconds.
				if early := time.Until(due); early > 2*time.Millisecond {
					t.Fatalf("retry %d came %v before it was due", times, early)
				}
				if message.Topic() != topic+"-"+subscription+"-RETRY" {
					t.Fatalf("retry %d came from %s", times, message.Topic())
				}
				expected[reconsumeTimes] = fmt.Sprint(times)
				expected[delayTime] = fmt.Sprint(delay.Milliseconds())
				expected["attempt"] = fmt.Sprint(times)
				expectProperties(t, message, expected)
				expectMessage(t, message, "later", "k")
			}
			consumer.ReconsumeLater(message, 0)
			letter := receive(t, dead)
			expected[reconsumeTimes], expected[delayTime] = "4", "0"
			expectProperties(t, letter, expected)
			expectMessage(t, letter, "later", "k")
			if _, more := receiveWithin(t, consumer, 300*time.Millisecond); more {
				t.Fatal("a dead letter came again")
			}
		})
	}
}

func TestNacksOnKeySharedEndInTheDefaultDeadLetterTopic(t *testing.T) {
	client := newClient(t)
	topic, subscription, dead := chain(t, client)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: pulsar.KeyShared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2}, NackRedeliveryDelay: 100 * time.Millisecond,
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("poison"), Key: "k"})
	for i := 0; i < 2; i++ {
		consumer.Nack(receive(t, consumer))
	}
	letter := receive(t, dead)
	expectMessage(t, letter, "poison", "k")
	expectProperties(t, letter, map[string]string{realTopic: topic})
	send(t, producer, &pulsar.ProducerMessage{Payload: []byte("next"), Key: "k"})
	if got := string(receive(t, consumer).Payload()); got != "next" {
		t.Fatalf("after the dead letter came %q", got)
	}
}

// growing waits longer before each redelivery, and notes how many redeliveries there had been.
type growing struct{ asked chan uint32 }

func (g growing) Next(redeliveries uint32) time.Duration {
	g.asked <- redeliveries
	return time.Duration(redeliveries+1) * 50 * time.Millisecond
}

// expect refuses a message. How long the client waits then is its own business; the broker gives it the count of
// redeliveries that it decides by.
func (g growing) expect(t *testing.T, consumer pulsar.Consumer, message pulsar.Message, redeliveries uint32) {
	t.Helper()
	for len(g.asked) > 0 {
		// The client asks for other reasons, too.
		<-g.asked
	}
	consumer.Nack(message)
	select {
	case asked := <-g.asked:
		if asked != redeliveries {
			t.Fatalf("the backoff was asked for after %d redeliveries, want %d", asked, redeliveries)
		}
	case <-time.After(deadline):
		t.Fatal("the backoff was not asked for")
	}
}

func TestNackBackoffGrows(t *testing.T) {
	client := newClient(t)
	topic := topicName()
	policy := growing{make(chan uint32, 100)}
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackBackoffPolicy: policy,
	})
	send(t, produce(t, client, pulsar.ProducerOptions{Topic: topic}), &pulsar.ProducerMessage{Payload: []byte("x")})
	message := receive(t, consumer)
	for redeliveries := uint32(0); redeliveries < 3; redeliveries++ {
		policy.expect(t, consumer, message, redeliveries)
		message = receive(t, consumer)
		if message.RedeliveryCount() != redeliveries+1 {
			t.Fatalf("redelivery count %d, want %d", message.RedeliveryCount(), redeliveries+1)
		}
	}
}
