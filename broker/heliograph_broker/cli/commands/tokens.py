"""``heliograph tokens``: makes keys and tokens, and checks them, with the options of Pulsar's ``bin/pulsar tokens``."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from heliograph_api.tables import readable_time

from heliograph_broker.cli.base.new_files import PRIVATE, PUBLIC, check_new, write_new
from heliograph_broker.cli.base.shared_options import CliError, usage_error
from heliograph_broker.cli.base.values import one_of, time_seconds
from heliograph_broker.clock import SystemClock

if TYPE_CHECKING:
    from heliograph_api.tokens.keys import TokenKey

tokens_app = typer.Typer(
    help="Create keys and tokens for token authentication, and check tokens. No broker is needed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LONG = re.compile(r"([0-9]{1,3})([wy])", re.ASCII)
_DAYS = {"w": 7, "y": 365}
_NEVER = "never"
_KEY_FORMS = "a path, file:///path or data:;base64,TEXT"

Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
TokenArgument = Annotated[
    str | None,
    typer.Argument(metavar="TOKEN", help="The token; other users can see arguments, so prefer a file."),
]
Stdin = Annotated[bool, typer.Option("-i", "--stdin", help="Read the token from standard input.")]
TokenFile = Annotated[
    Path | None, typer.Option("-f", "--token-file", metavar="FILE", help="Read the token from a file.")
]


@tokens_app.command("create-secret-key")
def create_secret_key(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    in_base64: Annotated[bool, typer.Option("-b", "--base64", help="Encode the key in base64.")] = False,
    algorithm: Annotated[
        str, typer.Option("-a", "--signature-algorithm", metavar="NAME", help="HS256, HS384 or HS512.")
    ] = "HS256",
    force: Force = False,
) -> None:
    """Create a secret key, which both signs and verifies tokens.

    Everybody who has it can make tokens for every role; with a pair of keys, brokers need only the public one. The
    file is readable by its owner only.

    \b
    Examples:
      heliograph tokens create-secret-key -o secret.key
      heliograph tokens create-secret-key --base64 -a HS512
    """
    from heliograph_api.tokens.keys import SECRET_BYTES
    from heliograph_api.tokens.signing import new_secret

    name = one_of("--signature-algorithm", algorithm, tuple(SECRET_BYTES))
    if output is None and not in_base64 and sys.stdout.isatty():
        usage_error("the key is bytes that a terminal cannot show; valid: --output FILE, or --base64")
    secret = new_secret(name)
    content = base64.b64encode(secret) if in_base64 else secret
    if output is not None:
        write_new(output, content, PRIVATE, force)
    elif in_base64:
        print(content.decode())
    else:
        sys.stdout.buffer.write(content)


@tokens_app.command("create-key-pair")
def create_key_pair(
    private: Annotated[
        Path, typer.Option("--output-private-key", metavar="FILE", help="File to write the private key to.")
    ],
    public: Annotated[
        Path, typer.Option("--output-public-key", metavar="FILE", help="File to write the public key to.")
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            "-a",
            "--signature-algorithm",
            metavar="NAME",
            help="RS256 (or RS384, RS512, PS256, PS384, PS512: the same keys), ES256, ES384, ES512 or EdDSA.",
        ),
    ] = "RS256",
    force: Force = False,
) -> None:
    """Create a pair of keys: the private one signs tokens, the public one verifies them.

    Both are written in DER. The file of the private key is readable by its owner only.

    \b
    Examples:
      heliograph tokens create-key-pair --output-private-key private.key --output-public-key public.key
      heliograph tokens create-key-pair -a ES256 --output-private-key private.key --output-public-key public.key
    """
    from heliograph_api.tokens.keys import PUBLIC_KEY_ALGORITHMS
    from heliograph_api.tokens.signing import new_pair

    name = one_of("--signature-algorithm", algorithm, PUBLIC_KEY_ALGORITHMS)
    if private.absolute() == public.absolute():
        usage_error("--output-private-key and --output-public-key name the same file; valid: two files")
    check_new(public, force)
    pair = new_pair(name)
    write_new(private, pair.private, PRIVATE, force)
    write_new(public, pair.public, PUBLIC, force)


@tokens_app.command()
def create(
    subject: Annotated[
        str, typer.Option("-s", "--subject", metavar="ROLE", help="The role that the token proves (claim sub).")
    ],
    secret_key: Annotated[
        str, typer.Option("-sk", "--secret-key", metavar="KEY", help=f"Secret key that signs: {_KEY_FORMS}.")
    ] = "",
    private_key: Annotated[
        str, typer.Option("-pk", "--private-key", metavar="KEY", help="Private key that signs, in the same forms.")
    ] = "",
    expiry_time: Annotated[
        str,
        typer.Option(
            "-e",
            "--expiry-time",
            "--expires",
            metavar="TIME",
            help="Time until the token expires: 30m, 1h, 3d, 2w, 5y, or never.",
        ),
    ] = _NEVER,
    algorithm: Annotated[
        str,
        typer.Option(
            "-a",
            "--signature-algorithm",
            metavar="NAME",
            help="Algorithm of the signature, one of the key's type; default: the first one of that type.",
        ),
    ] = "",
    audience: Annotated[
        str,
        typer.Option("--audience", metavar="NAME", help="The token_audience of the intended brokers (claim aud)."),
    ] = "",
    headers: Annotated[
        list[str] | None,
        typer.Option("-hs", "--headers", metavar="NAME=VALUE", help="Additional header of the token; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write the token to; default: standard output."),
    ] = None,
    force: Force = False,
) -> None:
    """Create a token for a role, signed by a secret or private key.

    A token that never expires is valid until its key is no longer trusted. The file is readable by its owner only.

    \b
    Examples:
      heliograph tokens create --subject billing --secret-key secret.key --expiry-time 30d
      heliograph tokens create -s billing -pk private.key --expires 1h -o billing.token
    """
    from heliograph_api.tokens.keys import PUBLIC_KEY_ALGORITHMS, SECRET_BYTES
    from heliograph_api.tokens.signing import sign_token

    if not subject.strip():
        usage_error("--subject is empty; valid: a role, such as billing")
    if algorithm:
        algorithm = one_of("--signature-algorithm", algorithm, (*SECRET_BYTES, *PUBLIC_KEY_ALGORITHMS))
    claims: dict[str, Any] = {"sub": subject}
    if audience:
        claims["aud"] = audience
    seconds = _expiry_seconds(expiry_time)
    if seconds is not None:
        claims["exp"] = SystemClock().now_ms() // 1000 + seconds
    key = _signing_key(secret_key, private_key)
    try:
        token = sign_token(key, claims, algorithm, _headers(headers or []))
    except ValueError as error:
        raise CliError(str(error)) from None
    if output is None:
        print(token)
    else:
        write_new(output, token.encode(), PRIVATE, force)


@tokens_app.command()
def show(token: TokenArgument = None, stdin: Stdin = False, token_file: TokenFile = None) -> None:
    """Print the header and the claims of a token, without verifying it.

    The token is an argument, or in a file, on standard input, or in the environment variable TOKEN.

    \b
    Examples:
      heliograph tokens show -f billing.token
      heliograph tokens show --stdin < billing.token
    """
    from heliograph_api.tokens.parts import NotAToken, take_apart

    try:
        parts = take_apart(_token(token, stdin, token_file))
        claims = parts.claims()
    except NotAToken as error:
        raise CliError(f"not a token: {error}") from None
    print(json.dumps(parts.header))
    print("---")
    print(json.dumps(claims))


@tokens_app.command()
def validate(
    token: TokenArgument = None,
    stdin: Stdin = False,
    token_file: TokenFile = None,
    secret_key: Annotated[
        list[str] | None,
        typer.Option("-sk", "--secret-key", metavar="KEY", help=f"Secret key: {_KEY_FORMS}; may be repeated."),
    ] = None,
    public_key: Annotated[
        list[str] | None,
        typer.Option("-pk", "--public-key", metavar="KEY", help="Public key, in the same forms; may be repeated."),
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            "-a",
            "--signature-algorithm",
            metavar="NAME",
            help="The only valid one; default: those of the keys.",
        ),
    ] = "",
    audience: Annotated[
        str, typer.Option("--audience", metavar="NAME", help="Check it as a broker with this token_audience does.")
    ] = "",
    role_claim: Annotated[
        str, typer.Option("--role-claim", metavar="NAME", help="Claim of the role, as the broker's token_role_claim.")
    ] = "sub",
) -> None:
    """Check a token as a broker with these keys does, and print its role and when it expires.

    The token is an argument, or in a file, on standard input, or in the environment variable TOKEN.

    Exit code: 0 for a valid token, 1 for an invalid one; stderr says why.

    \b
    Examples:
      heliograph tokens validate -f billing.token --secret-key secret.key
      heliograph tokens validate --stdin --public-key public.key --public-key old.key < billing.token
    """
    from heliograph_api.tokens.key_sources import KeyUnusable
    from heliograph_api.tokens.keys import PUBLIC_KEY_ALGORITHMS, SECRET_BYTES
    from heliograph_api.tokens.parts import NotAToken, take_apart

    from heliograph_broker.security.authentication.provider import Credentials, Unauthenticated
    from heliograph_broker.security.authentication.token import TokenProvider
    from heliograph_broker.security.authentication.token_keys import TrustedKeys

    if not secret_key and not public_key:
        usage_error("there is no key to check the token with; valid: --secret-key KEY or --public-key KEY")
    data = _token(token, stdin, token_file)
    clock = SystemClock()
    try:
        provider = TokenProvider(TrustedKeys(secret_key or [], public_key or [], clock), clock, audience, role_claim)
        identity = asyncio.run(provider.authenticate(Credentials(data)))
        signed_by = take_apart(data).algorithm
    except (KeyUnusable, Unauthenticated, NotAToken) as error:
        raise CliError(str(error)) from None
    if algorithm:
        asked = one_of("--signature-algorithm", algorithm, (*SECRET_BYTES, *PUBLIC_KEY_ALGORITHMS))
        if asked != signed_by:
            raise CliError(f"the token is signed by {signed_by}, not by {asked}")
    end = identity.expires_at_ms
    print(f"valid: role {identity.role}, {f'until {readable_time(end)} UTC' if end is not None else 'never expires'}")


def _token(token: str | None, stdin: bool, token_file: Path | None) -> bytes:
    given = [token is not None, stdin, token_file is not None]
    if sum(given) > 1:
        usage_error("the token is given more than once; valid: one of TOKEN, --stdin and --token-file")
    if token_file is not None:
        try:
            return token_file.read_bytes().strip()
        except OSError as error:
            raise CliError(f"cannot read {token_file}: {error.strerror}") from None
    found = sys.stdin.read() if stdin else token if token is not None else os.environ.get("TOKEN", "")
    if not found.strip():
        usage_error("there is no token; valid: --token-file FILE, --stdin, TOKEN, or the environment variable TOKEN")
    return found.strip().encode()


def _signing_key(secret_key: str, private_key: str) -> TokenKey:
    from heliograph_api.tokens import keys
    from heliograph_api.tokens.key_sources import KeyUnusable, parse_source, read_source

    if bool(secret_key) == bool(private_key):
        usage_error("a token is signed by one key; valid: either --secret-key KEY or --private-key KEY")
    source = secret_key or private_key
    try:
        content = read_source(source)
        if private_key:
            return parse_source(source, content, keys.private_key)
        return parse_source(source, content, keys.secret_keys)[0]
    except KeyUnusable as error:
        raise CliError(str(error)) from None


def _expiry_seconds(text: str) -> int | None:
    """Return for how many seconds a token is valid, None for one that never expires."""
    if text == _NEVER:
        return None
    # Weeks and years are Pulsar's here; no other duration has them.
    long = _LONG.fullmatch(text)
    if long is not None:
        seconds = int(long[1]) * _DAYS[long[2]] * 86_400
    else:
        seconds = time_seconds("--expiry-time", text) if text else 0
    if seconds <= 0:
        usage_error(
            f"--expiry-time '{text}' is no time that a token is valid for; valid: 30m, 1h, 3d, 2w, 5y, or {_NEVER}"
        )
    return seconds


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            usage_error(f"--headers '{each}' is not a header; valid: NAME=VALUE")
        headers[name] = value
    return headers
