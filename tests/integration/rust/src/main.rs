//! Drives a running broker with the Rust client `pulsar`: runs the cases named as arguments, or all.
//!
//! The service URL comes from HELIOGRAPH_SERVICE_URL, the admin URL from HELIOGRAPH_HTTP_URL. It prints a line for
//! every case: `passed NAME` or `failed NAME REASON`.

mod examples;
mod publishing;
mod reading;
mod subscriptions;
mod support;

use std::time::Duration;

use futures::future::BoxFuture;
use futures::StreamExt;
use support::Outcome;

/// The limit of one case; the waits in it have shorter ones of their own.
const CASE_WITHIN: Duration = Duration::from_secs(400);

/// How many cases run at the same time: most of them wait most of the time, but each of them also connects.
const AT_A_TIME: usize = 12;

type Case = (&'static str, fn() -> BoxFuture<'static, Outcome>);

macro_rules! cases {
    ($($module:ident: $($name:ident)+;)+) => {
        const CASES: &[Case] = &[$($((stringify!($name), || Box::pin($module::$name())),)+)+];
    };
}

// tests/support/rust_client.py reads the names from here.
cases! {
    publishing:
        messages_come_in_order_on_every_type
        batches_come_in_order_on_every_type
        non_persistent_messages_come
        batches_are_stored_as_one_entry
        batch_is_sent_after_its_time
        messages_compressed_with_lz4
        messages_compressed_with_zlib
        messages_compressed_with_zstd
        messages_compressed_with_snappy
        message_carries_what_was_set
        key_of_bytes
        message_above_the_limit_is_refused
        one_producer_for_many_topics
        exclusive_producer_refuses_others
        waiting_producer_takes_over
        json_schema_is_checked
        delayed_message_comes_when_due;
    subscriptions:
        exclusive_refuses_a_second_consumer
        shared_spreads_and_redelivers
        failover_takes_over
        lower_priority_waits
        key_shared_keeps_keys_together
        negative_acknowledgement_redelivers
        unacknowledged_message_comes_again
        dead_letters_go_to_their_topic
        acknowledged_message_does_not_return
        cumulative_acknowledgement
        acknowledging_one_of_a_batch_acknowledges_all
        non_durable_consumer_leaves_no_subscription
        unsubscribed_subscription_is_gone
        small_queue_gets_everything;
    reading:
        reader_from_the_earliest
        reader_from_the_latest
        reader_from_an_id
        reader_seeks_an_id
        consumer_seeks_an_id
        consumer_seeks_a_time
        last_message_id_is_that_of_the_last
        compacted_topic_has_the_last_values
        list_of_topics
        regex_picks_up_later_topics
        partitions_get_all_messages
        key_stays_in_its_partition
        single_partition_keeps_the_order
        topics_of_a_namespace;
    examples:
        example_producer_and_consumer
        example_reader
        example_round_trip
        example_batching;
}

#[tokio::main]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let cases = CASES.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|each| each == name));
    let mut ended = futures::stream::iter(cases)
        .map(|(name, case)| async move { (name, tokio::spawn(tokio::time::timeout(CASE_WITHIN, case())).await) })
        .buffer_unordered(AT_A_TIME);
    while let Some((name, outcome)) = ended.next().await {
        let reason = match outcome {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(failure))) => Some(format!("{failure:?}")),
            Ok(Err(_)) => Some(format!("not done within {CASE_WITHIN:?}")),
            Err(panic) => Some(panic.to_string()),
        };
        match reason {
            None => println!("passed {name}"),
            Some(reason) => println!("failed {name} {}", reason.replace('\n', " ")),
        }
    }
}
