"""Names: any text is a name or is refused by InvalidName, and a name's text is a name again."""

from __future__ import annotations

from heliograph_api.values.names import InvalidName, NamespaceName, TopicName, check_subscription
from hypothesis import assume, given
from hypothesis import strategies as st

# On a busy machine the time an example takes says nothing.

_PART = st.text("-=:._azAZ09", min_size=1, max_size=12)
_LOCAL = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda text: text == text.strip()
)
# All characters, halves of surrogate pairs too: what Python's decoders can be made to produce.
_ANY_TEXT = st.text(st.characters(exclude_categories=()))
_LIKE_A_NAME = st.builds(
    lambda domain, parts, end: domain + "/".join(parts) + end,
    st.sampled_from(["", "persistent://", "non-persistent://", "://", "x://", "persistent:/"]),
    st.lists(_ANY_TEXT, max_size=5),
    st.sampled_from(["", "-partition-0", "-partition-7", "-partition-07", "-partition-" + "9" * 5000, " "]),
)


@given(_ANY_TEXT | _LIKE_A_NAME)
def test_any_text_is_a_name_or_invalid(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidName as error:
        reason = str(error)
    else:
        reason = ""
        _comes_back(name)
    assert reason.isprintable()


def _comes_back(name: TopicName) -> None:
    assert TopicName.parse(str(name)) == name
    assert hash(TopicName.parse(str(name))) == hash(name)
    assert str(name).encode().decode() == str(name)
    assert name.base.base == name.base or name.base.partition >= 0
    if name.partition >= 0:
        assert name.base.with_partition(name.partition) == name


@given(st.sampled_from(["persistent", "non-persistent"]), _PART, _PART, _LOCAL)
def test_parts_make_a_name_and_come_back(domain: str, tenant: str, namespace: str, local: str) -> None:
    name = TopicName.parse(f"{domain}://{tenant}/{namespace}/{local}")
    assert (name.domain, name.tenant, name.namespace, name.local) == (domain, tenant, namespace, local)
    assert name.namespace_name == f"{tenant}/{namespace}"
    assert TopicName.of(domain, tenant, namespace, local) == name


@given(_LOCAL, st.integers(0, 999_999_999))
def test_partitions_come_back(local: str, index: int) -> None:
    name = TopicName.of("persistent", "t", "n", local)
    partition = name.with_partition(index)
    assert (partition.partition, partition.base) == (index, name)


@given(_ANY_TEXT)
def test_a_namespace_or_invalid(text: str) -> None:
    try:
        name = NamespaceName.parse(text)
    except InvalidName:
        return
    assert str(name) == text
    assert NamespaceName.parse(str(name)) == name


@given(_ANY_TEXT)
def test_a_subscription_or_invalid(text: str) -> None:
    try:
        check_subscription(text)
    except InvalidName:
        return
    assert 0 < len(text.encode()) <= 240


@given(_PART, _PART, _LOCAL)
def test_names_of_rest_paths_come_back(tenant: str, namespace: str, local: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in local.encode())
    assert TopicName.from_path("persistent", tenant, namespace, encoded).local == local
    assume("%" not in local)
    assert TopicName.from_path("persistent", tenant, namespace, local).local == local
