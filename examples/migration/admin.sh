#!/bin/sh
# Sets up a shop's tenant, namespace and topic with pulsar-admin, against the broker that its client.conf names.
set -e
pulsar-admin tenants create shop --allowed-clusters standalone
pulsar-admin namespaces create shop/payments
pulsar-admin namespaces set-retention shop/payments --size 512M --time 3h
pulsar-admin namespaces set-message-ttl shop/payments --messageTTL 86400
pulsar-admin namespaces set-backlog-quota shop/payments --limit 256M --policy producer_request_hold
pulsar-admin namespaces set-deduplication shop/payments --enable
pulsar-admin namespaces set-max-consumers-per-topic shop/payments --max-consumers-per-topic 100
pulsar-admin namespaces set-persistence shop/payments --bookkeeper-ensemble 1 --bookkeeper-write-quorum 1 --bookkeeper-ack-quorum 1 --ml-mark-delete-max-rate 0
pulsar-admin topics create-partitioned-topic persistent://shop/payments/orders --partitions 3
pulsar-admin topics create-subscription persistent://shop/payments/orders --subscription billing
pulsar-admin topics create-subscription persistent://shop/payments/orders --subscription audit
