//! The steps of the examples that come with the client: the same calls with the same settings.

use futures::future::join_all;
use futures::TryStreamExt;
use pulsar::compression::{Compression, CompressionSnappy};
use pulsar::message::proto::{schema, Schema};
use pulsar::{ConsumerOptions, ProducerOptions, SubType};
use tokio::time::timeout;

use crate::support::*;

/// What these examples send; theirs writes the same with a library.
const DATA: &str = r#"{"data":"data"}"#;

fn text_schema() -> Schema {
    Schema { r#type: schema::Type::String as i32, ..Default::default() }
}

async fn example_producer(client: &Client, topic: &str, name: &str) -> Result<Producer, Failure> {
    let options = ProducerOptions { schema: Some(text_schema()), ..Default::default() };
    Ok(client.producer().with_topic(topic).with_name(name).with_options(options).build().await?)
}

type Producer = pulsar::Producer<pulsar::TokioExecutor>;

async fn example_consumer(client: &Client, topic: &str) -> Result<TextConsumer, Failure> {
    let builder = client.consumer().with_topic(topic).with_consumer_name("test_consumer");
    let builder = builder.with_subscription_type(SubType::Exclusive).with_subscription("test_subscription");
    Ok(builder.build().await?)
}

async fn send_examples(producer: &mut Producer, count: usize) -> Outcome {
    for _ in 0..count {
        timeout(DEADLINE, producer.send_non_blocking(DATA).await?).await??;
    }
    Ok(())
}

async fn consume_examples(consumer: &mut TextConsumer, count: usize) -> Outcome {
    assert_eq!(receive_texts(consumer, count).await?, vec![DATA; count]);
    Ok(())
}

pub async fn example_producer_and_consumer() -> Outcome {
    let client = connect().await?;
    let topic = format!("non-persistent://public/default/{}", fresh_name());
    let mut consumer = example_consumer(&client, &topic).await?;
    let mut producer = example_producer(&client, &topic, "my producer").await?;
    send_examples(&mut producer, 11).await?;
    consume_examples(&mut consumer, 11).await?;
    producer.close().await?;
    consumer.close().await?;
    Ok(())
}

pub async fn example_reader() -> Outcome {
    let client = connect().await?;
    let topic = format!("non-persistent://public/default/{}", fresh_name());
    let builder = client.reader().with_topic(&topic).with_consumer_name("test_reader");
    let options = ConsumerOptions::default().with_schema(text_schema());
    let mut reader: TextReader = builder.with_options(options).into_reader().await?;
    let mut producer = example_producer(&client, &topic, "my producer").await?;
    send_examples(&mut producer, 6).await?;
    assert_eq!(read_texts(&mut reader, 6).await?, [DATA; 6]);
    Ok(())
}

pub async fn example_round_trip() -> Outcome {
    let topic = fresh_name();
    let client = connect().await?;
    let mut producer = example_producer(&client, &topic, "my-producer").await?;
    let mut consumer = example_consumer(&connect().await?, &topic).await?;
    let sending = tokio::spawn(async move { send_examples(&mut producer, 200).await });
    consume_examples(&mut consumer, 200).await?;
    sending.await?
}

pub async fn example_batching() -> Outcome {
    let topic = fresh_name();
    let client = connect().await?;
    let compression = Some(Compression::Snappy(CompressionSnappy::default()));
    let options = ProducerOptions { compression, ..batches(4) };
    let builder = client.producer().with_topic(&topic).with_name("my-producer2").with_options(options);
    let mut producer = builder.build().await?;
    producer.check_connection().await?;
    let mut consumer = example_consumer(&client, &topic).await?;
    let mut receipts = Vec::new();
    for _ in 0..4 {
        receipts.push(producer.send_non_blocking(DATA).await?);
    }
    let receipts = timeout(DEADLINE, join_all(receipts)).await?;
    assert!(receipts.iter().all(Result::is_ok), "{receipts:?}");
    for _ in 0..4 {
        let message = timeout(DEADLINE, consumer.try_next()).await??.ok_or("the consumer ended")?;
        consumer.ack(&message).await?;
        assert_eq!(message.deserialize()?, DATA);
    }
    Ok(())
}
