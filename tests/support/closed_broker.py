"""A broker that is closed: TLS only, with every way to authenticate, for the official clients.

What they need is in a file of lines ``name=value`` (:attr:`ClosedBroker.facts`), which programs in Java and Go read.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from .certificates import Authority, CertificateFiles
from .oidc_issuer import AUDIENCE, OidcIssuer
from .passwords import write_users
from .tls_broker import TlsBroker
from .tokens import CHECK_EVERY_S, Answer, Signer, ask

_GUIDE: Final = Path(__file__).parents[2] / "docs" / "security.md"
#: The role of a token that may do everything.
ADMIN: Final = "admin"
#: The role of the certificate, of the user, and of the client of the identity provider. It has no grants.
ROLE: Final = "billing"
PASSWORD: Final = "a password with 100 % of: odd @ characters"
#: The environment variable that names the file of facts.
FACTS: Final = "HELIOGRAPH_CLOSED"


class ClosedBroker:
    """Use it with ``with``. Its certificate is for ``localhost`` only, not for the addresses it listens on.

    The identity provider has TLS, too, by a certificate of another authority than the broker's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.signer = Signer(directory / "secret.key")
        issuing = Authority("authority of the issuer")
        #: The file of the authority that the identity provider's certificate is of.
        self.issuer_trusted = issuing.write(directory, "issuer-ca")
        #: A file of this authority and the broker's, for clients that take one file for both.
        self.all_trusted = directory / "all-ca.crt"
        self.issuer = OidcIssuer(authority=issuing)
        self.issuer.add_client(ROLE, "the secret of a client")
        self.facts = directory / "closed.properties"
        #: What a client of the identity provider has, as Pulsar's plugins for OAuth2 read it.
        self.credentials = directory / "credentials.json"
        #: A certificate whose role is :data:`ROLE`, and a file with a token of that role.
        self.identity: CertificateFiles
        self.token_file = directory / "role.token"
        self._stack = contextlib.ExitStack()
        self.broker: TlsBroker
        #: URLs by the name in the certificate.
        self.service_url = self.http_url = ""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.issuer)
            users = write_users(self.directory / "users", {ROLE: PASSWORD})
            environment = {
                "HELIOGRAPH_AUTH": "token,tls,basic,oidc",
                "HELIOGRAPH_TOKEN_SECRET_KEY": str(self.signer.path),
                "HELIOGRAPH_OIDC_ISSUER": self.issuer.url,
                "HELIOGRAPH_OIDC_AUDIENCE": AUDIENCE,
                "HELIOGRAPH_OIDC_CA": str(self.issuer_trusted),
                "HELIOGRAPH_BASIC_FILE": str(users),
                "HELIOGRAPH_SUPERUSERS": ADMIN,
                "HELIOGRAPH_AUTH_REFRESH_CHECK_S": str(CHECK_EVERY_S),
                "HELIOGRAPH_ADVERTISED_HOST": "localhost",
                # All that it could say about its clients' secrets.
                "HELIOGRAPH_LOG_LEVEL": "debug",
            }
            # All addresses: one that is not in the certificate is 127.0.0.2.
            arguments = ["--tls-only", "--bind", "0.0.0.0", "--tls-client-ca", str(self.directory / "ca.crt")]
            self.broker = TlsBroker(self.directory, *arguments, environment=environment)
            self.broker.replace(self.broker.authority.issue(hosts=["localhost"]))
            stack.enter_context(self.broker)
            process = self.broker.process
            self.service_url = f"pulsar+ssl://localhost:{urlsplit(process.service_tls_url).port}"
            self.http_url = f"https://localhost:{urlsplit(process.https_url).port}"
            self._write_facts()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _write_facts(self) -> None:
        self.all_trusted.write_bytes(self.broker.authority.pem + self.issuer_trusted.read_bytes())
        self.identity = self.broker.authority.issue(ROLE, hosts=()).write(self.directory, "client")
        self.credentials.write_text(
            json.dumps(
                {
                    "type": "client_credentials",
                    "client_id": ROLE,
                    "client_secret": self.issuer.clients[ROLE],
                    "issuer_url": self.issuer.url,
                }
            )
        )
        self.token_file.write_text(self.signer.token(ROLE))
        facts = {
            "serviceUrl": self.service_url,
            "httpUrl": self.http_url,
            "trusted": self.broker.trusted,
            "foreign": Authority("foreign authority").write(self.directory, "foreign"),
            "secretKey": self.signer.path,
            "token": self.token_file,
            "tokenUrl": self.token_file.as_uri(),
            "certificate": self.identity.certificate,
            "privateKey": self.identity.key,
            "password": PASSWORD,
            "issuer": self.issuer.url,
            "issuerTrusted": self.issuer_trusted,
            "credentials": self.credentials,
            "audience": AUDIENCE,
        }
        self.facts.write_text("".join(f"{name}={value}\n" for name, value in facts.items()))

    def ask(self, path: str, method: str = "GET", body: object = None) -> Answer:
        """Send a request to the admin API as the superuser."""
        token = self.signer.token(ADMIN)
        return ask(f"{self.http_url}/admin/v2/{path}", token, method, body, context=self.broker.context())

    def grant(self, topic: str, *actions: Any, role: str = ROLE) -> None:
        """Grant actions on ``persistent://tenant/namespace/topic``, which is made if it is not there."""
        path = topic.replace("://", "/")
        assert self.ask(path, "PUT").status in (204, 409)
        assert self.ask(f"{path}/permissions/{role}", "POST", list(actions)).status == 204


def shown(language: str) -> list[str]:
    """Return what the guide shows clients of a closed broker in a language, in its order."""
    section = _GUIDE.read_text(encoding="utf-8").partition("\n## Clients\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
