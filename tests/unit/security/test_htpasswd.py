"""Files of users: bcrypt of a bearable cost is accepted, everything else is refused by its name and line."""

from __future__ import annotations

from collections import Counter

import bcrypt
import pytest
from heliograph_broker.security.authentication.htpasswd import InvalidHtpasswd, StandIns, parse_htpasswd
from hypothesis import given
from hypothesis import strategies as st

HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4))
#: As Apache's htpasswd writes it: the same algorithm by another letter.
APACHES = b"$2y$" + HASHED[4:]


def test_users_comments_and_empty_lines() -> None:
    content = b"# users\n\nbilling:" + APACHES + b"\r\n  reports:" + HASHED + b"\n"
    assert parse_htpasswd(content) == {"billing": APACHES, "reports": HASHED}
    assert parse_htpasswd(b"") == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"billing:$apr1$salt$aaaaaaaaaaaaaaaaaaaaaa", "user 'billing' has a hash of MD5 ($apr1$)"),
        (b"billing:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=", "user 'billing' has a hash of SHA-1 ({SHA})"),
        (b"billing:$6$salt$aaaa", "user 'billing' has a hash of SHA-512 ($6$)"),
        (b"billing:rl.3StKT.4T8M", "user 'billing' has a hash of crypt"),
        (b"billing:a password as it is", "user 'billing' has a hash of an unknown kind"),
        (b"billing:" + HASHED[:-1], "user 'billing' has a hash of a bcrypt that is damaged"),
        (b"billing:$2y$15$" + b"." * 53, "user 'billing' has a bcrypt hash of cost 15; valid: 4 to 14"),
        (b"billing:$2y$03$" + b"." * 53, "user 'billing' has a bcrypt hash of cost 3; valid: 4 to 14"),
    ],
    # The hashes have a salt of their own in each process that collects.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_hashes_are_refused_with_the_command_that_writes_a_right_one(line: bytes, words: str) -> None:
    with pytest.raises(InvalidHtpasswd, match="as htpasswd -B -C 10 FILE USER writes it") as caught:
        parse_htpasswd(b"# first\n" + line)
    assert f"line 2: {words}" in str(caught.value)
    # The text after the colon may be somebody's password.
    assert line.partition(b":")[2].decode() not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"billing", "line 1 has no colon; valid: USER:HASH"),
        (b":" + HASHED, "line 1 has no valid name of a user"),
        (b"\xff:" + HASHED, "line 1 has no valid name of a user"),
        (b"a\x01:" + HASHED, "line 1 has no valid name of a user"),
        (b"a:" + HASHED + b"\na:" + HASHED, "line 2: user 'a' occurs more than once"),
    ],
    # The hashes have a salt of their own in each process that collects.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_lines_are_named(content: bytes, words: str) -> None:
    with pytest.raises(InvalidHtpasswd) as caught:
        parse_htpasswd(content)
    assert words in str(caught.value)


def test_no_password_has_a_stand_in_and_its_check_costs_as_much() -> None:
    made = StandIns({"a": b"$2y$06$" + b"." * 53}, b"secret").for_user("nobody")
    assert made.startswith(b"$2b$06$")
    assert not bcrypt.checkpw(b"", made)
    assert StandIns({}, b"secret").for_user("nobody").startswith(b"$2b$10$")


def test_unknown_users_cost_what_known_ones_do_and_each_always_the_same() -> None:
    costly = b"$2y$06$" + b"." * 53
    users = {f"user-{number}": costly if number % 4 == 0 else HASHED for number in range(100)}
    stand_ins = StandIns(users, b"secret")
    names = [f"nobody-{number}" for number in range(1000)]
    costs = Counter(stand_ins.for_user(name)[4:6] for name in names)
    assert set(costs) == {b"04", b"06"}
    # A quarter of the users in the file have the costly one.
    assert 150 < costs[b"06"] < 350
    again = StandIns(users, b"secret")
    assert [again.for_user(name) for name in names] == [stand_ins.for_user(name) for name in names]
    other = StandIns(users, b"another secret")
    assert [other.for_user(name) for name in names] != [stand_ins.for_user(name) for name in names]


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"a:", HASHED, b"\n", b"$apr1$", b"#"])).map(b"".join))
def test_any_bytes_are_users_or_refused(content: bytes) -> None:
    try:
        users = parse_htpasswd(content)
    except InvalidHtpasswd:
        return
    assert all(user and b":" not in user.encode() for user in users)
