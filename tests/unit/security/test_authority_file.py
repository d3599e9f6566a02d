"""Certificate authorities of issuers in a file: certificates in PEM, and nothing that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.security.authentication.authority_file import AuthoritiesUnusable, AuthorityFile

from tests.support.certificates import Authority

FIRST, SECOND = Authority("first").pem, Authority("second").pem


@pytest.mark.parametrize(
    ("content", "certificates"),
    [
        (FIRST, 1),
        (FIRST + SECOND, 2),
        (b"the first\n" + FIRST + b"\xc3\xa9\xff\n" + SECOND + b"the end", 2),
        (FIRST.replace(b"\n", b"\r\n"), 1),
    ],
)
def test_all_certificates_of_a_file_are_trusted(content: bytes, certificates: int, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(content)
    assert len(AuthorityFile(path).context().get_ca_certs()) == certificates


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"certificate", b"\x00\xff", FIRST[:200], FIRST + SECOND[:200], FIRST[:200] + SECOND[200:]],
)
def test_a_file_without_certificates_or_with_a_damaged_one_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(content)
    with pytest.raises(AuthoritiesUnusable, match=r"^/.*ca\.crt holds no certificates in PEM, or a damaged one$"):
        AuthorityFile(path).context()


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(AuthoritiesUnusable, match=r"^cannot read /.*none: No such file or directory$"):
        AuthorityFile(tmp_path / "none").context()
    with pytest.raises(AuthoritiesUnusable, match=r"^cannot read /.*: Is a directory$"):
        AuthorityFile(tmp_path).context()
