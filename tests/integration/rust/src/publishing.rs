//! Cases of producers and of what a message carries.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use pulsar::compression::{Compression, CompressionLz4, CompressionSnappy, CompressionZlib, CompressionZstd};
use pulsar::message::proto::{schema, Schema};
use pulsar::{ProducerOptions, SubType};
use tokio::time::timeout;

use crate::support::*;

const EXCLUSIVE: i32 = 1;
const WAIT_FOR_EXCLUSIVE: i32 = 2;

async fn in_order(batch: u32) -> Outcome {
    let client = connect().await?;
    for kind in TYPES {
        let topic = fresh_topic();
        let mut consumer = subscribe(&client, &topic, kind).await?;
        let mut producer = produce(&client, &topic, batches(batch)).await?;
        send_numbers(&mut producer, 100, 1).await?;
        assert_eq!(receive_texts(&mut consumer, 100).await?, texts(0, 100), "{kind:?}");
        expect_nothing(&mut consumer).await?;
    }
    Ok(())
}

pub async fn messages_come_in_order_on_every_type() -> Outcome {
    in_order(1).await
}

pub async fn batches_come_in_order_on_every_type() -> Outcome {
    in_order(10).await
}

pub async fn non_persistent_messages_come() -> Outcome {
    let client = connect().await?;
    let topic = format!("non-persistent://public/default/{}", fresh_name());
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    send_numbers(&mut produce(&client, &topic, ProducerOptions::default()).await?, 10, 0).await?;
    assert_eq!(receive_texts(&mut consumer, 10).await?, texts(0, 10));
    Ok(())
}

pub async fn batches_are_stored_as_one_entry() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    send_numbers(&mut produce(&client, &topic, batches(5)).await?, 10, 0).await?;
    let mut entries = HashSet::new();
    for number in 0..10 {
        let message = receive(&mut consumer).await?;
        assert_eq!(message.metadata().num_messages_in_batch, Some(5));
        assert_eq!(message.message_id().batch_index, Some(number % 5));
        entries.insert((message.message_id().ledger_id, message.message_id().entry_id));
    }
    assert_eq!(entries.len(), 2);
    Ok(())
}

pub async fn batch_is_sent_after_its_time() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    let options = ProducerOptions { batch_timeout: Some(Duration::from_millis(50)), ..batches(1000) };
    send_numbers(&mut produce(&client, &topic, options).await?, 3, 0).await?;
    assert_eq!(receive_texts(&mut consumer, 3).await?, texts(0, 3));
    Ok(())
}

async fn compressed(kind: Compression) -> Outcome {
    let client = connect().await?;
    let contents = ["x".to_owned(), "abc".repeat(10_000), (0..20_000).map(|each| each.to_string()).collect()];
    for batch in [1, 3] {
        let topic = fresh_topic();
        let mut consumer = subscribe(&client, &topic, SubType::Exclusive).await?;
        let options = ProducerOptions { compression: Some(kind.clone()), ..batches(batch) };
        let mut producer = produce(&client, &topic, options).await?;
        let mut receipts = Vec::new();
        for content in &contents {
            receipts.push(producer.send_non_blocking(content).await?);
        }
        for receipt in receipts {
            timeout(DEADLINE, receipt).await??;
        }
        assert!(receive_texts(&mut consumer, 3).await? == contents, "batches of {batch}: other contents");
    }
    Ok(())
}

pub async fn messages_compressed_with_lz4() -> Outcome {
    compressed(Compression::Lz4(CompressionLz4::default())).await
}

pub async fn messages_compressed_with_zlib() -> Outcome {
    compressed(Compression::Zlib(CompressionZlib::default())).await
}

pub async fn messages_compressed_with_zstd() -> Outcome {
    compressed(Compression::Zstd(CompressionZstd::default())).await
}

pub async fn messages_compressed_with_snappy() -> Outcome {
    compressed(Compression::Snappy(CompressionSnappy::default())).await
}

pub async fn message_carries_what_was_set() -> Outcome {
    let client = connect().await?;
    for batch in [1, 2] {
        let topic = fresh_topic();
        let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
        let name = fresh_name();
        let mut producer =
            client.producer().with_topic(&topic).with_name(&name).with_options(batches(batch)).build().await?;
        let mut receipts = Vec::new();
        for _ in 0..2 {
            let message = producer.create_message().with_content("p").with_key("k").with_ordering_key("o");
            let message = message.with_property("a", "1").event_time(1_234_567_890_123);
            receipts.push(message.send_non_blocking().await?);
        }
        for (sequence, receipt) in receipts.into_iter().enumerate() {
            timeout(DEADLINE, receipt).await??;
            let message = receive(&mut consumer).await?;
            let metadata = message.metadata();
            assert_eq!((text(&message).as_str(), message.key().as_deref()), ("p", Some("k")));
            assert_eq!(metadata.ordering_key.as_deref(), Some(b"o".as_slice()));
            assert_eq!(metadata.event_time, Some(1_234_567_890_123));
            assert_eq!(metadata.producer_name, name);
            assert!(metadata.publish_time > 0);
            assert_eq!(message.topic, topic);
            let properties: HashMap<_, _> =
                metadata.properties.iter().map(|each| (each.key.as_str(), each.value.as_str())).collect();
            assert_eq!(properties, HashMap::from([("a", "1")]));
            if batch == 1 {
                assert_eq!(metadata.sequence_id, sequence as u64);
            }
        }
    }
    Ok(())
}

pub async fn key_of_bytes() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumer = subscribe(&client, &topic, SubType::KeyShared).await?;
    let mut producer = produce(&client, &topic, ProducerOptions::default()).await?;
    let message = producer.create_message().with_content("p").with_key_bytes([0, 255, 1]);
    timeout(DEADLINE, message.send_non_blocking().await?).await??;
    let message = receive(&mut consumer).await?;
    assert!(message.has_base64_encoded_key());
    assert_eq!(message.key_bytes()?, Some(vec![0, 255, 1]));
    Ok(())
}

pub async fn message_above_the_limit_is_refused() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut producer = produce(&client, &topic, ProducerOptions::default()).await?;
    let receipt = producer.send_non_blocking(vec![0_u8; (5 << 20) + 1]).await?;
    // This client has no check of its own: the broker closes the connection of a frame that is too large.
    match timeout(Duration::from_secs(2), receipt).await {
        Ok(Ok(_)) => Err("a message above the limit was taken".into()),
        _ => Ok(()),
    }
}

pub async fn one_producer_for_many_topics() -> Outcome {
    let client = connect().await?;
    let topics: Vec<String> = (0..3).map(|_| fresh_topic()).collect();
    let mut producer = client.producer().build_multi_topic();
    for topic in &topics {
        let mut consumer = subscribe(&client, topic, SubType::Exclusive).await?;
        timeout(DEADLINE, producer.send_non_blocking(topic, numbered(7, 0)).await?).await??;
        assert_eq!(receive_texts(&mut consumer, 1).await?, ["7"]);
    }
    Ok(())
}

fn access(mode: i32) -> ProducerOptions {
    ProducerOptions { access_mode: Some(mode), ..Default::default() }
}

pub async fn exclusive_producer_refuses_others() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let _first = produce(&client, &topic, access(EXCLUSIVE)).await?;
    let other = connect_without_retries().await?;
    for options in [access(EXCLUSIVE), ProducerOptions::default()] {
        let second = other.producer().with_topic(&topic).with_options(options).build().await;
        let why = refusal(second)?;
        assert!(why.contains("ProducerFenced") || why.contains("ProducerBusy") || why.contains("Fenced"), "{why}");
    }
    Ok(())
}

pub async fn waiting_producer_takes_over() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut first = produce(&client, &topic, access(EXCLUSIVE)).await?;
    let other = connect().await?;
    let waits = {
        let topic = topic.clone();
        tokio::spawn(async move { produce(&other, &topic, access(WAIT_FOR_EXCLUSIVE)).await })
    };
    send_numbers(&mut first, 1, 0).await?;
    assert!(!waits.is_finished());
    first.close().await?;
    let mut second = timeout(DEADLINE, waits).await???;
    send_numbers(&mut second, 1, 0).await?;
    Ok(())
}

fn flights(fields: &str) -> Schema {
    let definition = format!(r#"{{"type":"record","name":"Flight","fields":[{fields}]}}"#);
    Schema {
        name: "flights".to_owned(),
        r#type: schema::Type::Json as i32,
        schema_data: definition.into_bytes(),
        ..Default::default()
    }
}

pub async fn json_schema_is_checked() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let carrier = r#"{"name":"carrier","type":"string"}"#;
    let options = ProducerOptions { schema: Some(flights(carrier)), ..Default::default() };
    let mut producer = produce(&client, &topic, options).await?;
    let options = from_earliest().with_schema(flights(carrier));
    let mut consumer: TextConsumer = consumer(&client, &topic, SubType::Shared).with_options(options).build().await?;
    timeout(DEADLINE, producer.send_non_blocking(r#"{"carrier":"UA"}"#).await?).await??;
    let message = receive(&mut consumer).await?;
    assert!(message.metadata().schema_version.is_some());
    let stored = consumer.get_schema(&topic, None).await?.ok_or("no schema")?;
    assert_eq!(stored.schema_data, flights(carrier).schema_data);
    let other = flights(r#"{"name":"distance","type":"int"}"#);
    let options = ProducerOptions { schema: Some(other), ..Default::default() };
    let why =
        refusal(connect_without_retries().await?.producer().with_topic(&topic).with_options(options).build().await)?;
    assert!(why.contains("IncompatibleSchema"), "{why}");
    Ok(())
}

pub async fn delayed_message_comes_when_due() -> Outcome {
    let client = connect().await?;
    let topic = fresh_topic();
    let mut consumer = subscribe(&client, &topic, SubType::Shared).await?;
    let mut producer = produce(&client, &topic, ProducerOptions::default()).await?;
    let much_later = SystemTime::now() + Duration::from_secs(3600);
    let held = producer.create_message().with_content("much later").deliver_at(much_later)?;
    timeout(DEADLINE, held.send_non_blocking().await?).await??;
    timeout(DEADLINE, producer.send_non_blocking("now").await?).await??;
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["now"]);
    let due = SystemTime::now() + Duration::from_secs(1);
    let later = producer.create_message().with_content("later").deliver_at(due)?;
    timeout(DEADLINE, later.send_non_blocking().await?).await??;
    assert_eq!(receive_texts(&mut consumer, 1).await?, ["later"]);
    // The client counts in whole milliseconds.
    assert!(SystemTime::now() + Duration::from_millis(10) >= due, "it came before it was due");
    Ok(())
}
