"""Code that tests of several tiers share.

Entries as clients send them come from :mod:`.entries`, the core without sockets from :mod:`.core`, a store that gives
its space back from :mod:`.store_load`, a broker's process from :mod:`.broker_process`, a cluster from :mod:`.cluster`
and :mod:`.cluster_fixtures`. Clients of a broker are the official one (:mod:`.clients`, and :mod:`.rotation_clients` in
three languages while credentials are replaced), two of the binary protocol (:mod:`.wire_client` asserts exact frames,
:mod:`.wire_link` is for load), the pipeline's own (:mod:`.entry_reading`), :mod:`.rest` and the :mod:`.command_line`;
clients are asked what no broker asks by a :mod:`.fake_broker`. Keys and tokens of other tools are in
:mod:`.token_specimens`, those of tests' own clients in :mod:`.tokens`, an identity provider in :mod:`.oidc_issuer`,
certificates in :mod:`.certificates`, users with passwords in :mod:`.passwords`; :mod:`.secret_watch` looks for the
secrets of all of them in the logs at the end of a run, and :mod:`.pod_logs` for those of the operator in the logs of
pods. Tests wait for a state with :mod:`.polling`. Streams of frames are read in parts by :mod:`.frame_streams`. Every
command and route as every kind of client, here and of Apache Pulsar, is in :mod:`.rights_matrix`. Programs that a
command runs are stood in for by :mod:`.programs`. What the pipeline stores elsewhere is in :mod:`.s3_server` and
:mod:`.rest_catalog`.

The policy model (``tests/property/test_policy_model.py``) compares the core with an oracle, step by step. Its parts,
from what is asked to what is compared:

==========================  ==========================================================================================
module                      what it is for
==========================  ==========================================================================================
``policy_history``          the histories: steps made from a seed, written as text, and cut down when one fails
``policy_driver``           runs one history: calls a step's action on both sides and compares them after it
``policy_client_steps``     the actions of clients: publish, subscribe, take, acknowledge, give back
``policy_modelled_broker``  the real core and the oracle side by side, and what must be the same of them
``policy_entries``          the messages of a step as an entry, and an entry as messages
``policy_levels``           the oracle: which policy holds for a topic, level by level, then the limits
``policy_oracle_state``     the oracle: what it remembers of topics, subscriptions and entries
``policy_oracle``           the oracle: what is kept, expires, is evicted or refused
``policy_oracle_delivery``  the oracle: which deliveries are right, and which are missing
==========================  ==========================================================================================

``policy_cases`` belongs to the tests of single policies in ``tests/unit`` instead, which use no oracle.
"""
