"""The roles for which administrators set something: the identities whose clients have the role, and these clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from heliograph_api.resources.role_state import ProvenIdentity, RoleLimits, RoleSettings, RoleState

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import Conflict

from .role_activity import RoleActivity

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.log.record_set import BrokerRecords
    from heliograph_broker.messaging.topic.directory import Directory


_UNLIMITED: Final = RoleLimits()


class Roles:
    """See the module. Every change is stored at once, each role by itself."""

    __slots__ = ("_directory", "_of_identities", "_records", "activity", "settings")

    def __init__(self, broker_records: BrokerRecords, directory: Directory, clock: Clock) -> None:
        self._records = broker_records
        self._directory = directory
        #: By the names of roles. Not to be changed in place.
        self.settings: dict[str, RoleSettings] = {}
        self._of_identities: dict[ProvenIdentity, str] = {}
        self.activity = RoleActivity(self.settings.keys(), clock)

    def restore(self, role: str, settings: RoleSettings) -> None:
        """Take in a role as it is stored."""
        self.settings[role] = settings
        for identity in settings.identities:
            self._of_identities[identity] = role

    def limits_of(self, role: str) -> RoleLimits:
        """Return the limits of a role's clients."""
        settings = self.settings.get(role)
        return settings.limits if settings is not None else _UNLIMITED

    def role_of(self, proven: Iterable[ProvenIdentity]) -> str:
        """Return the role of the first of these identities that has one; empty: none has."""
        for identity in proven:
            role = self._of_identities.get(identity)
            if role is not None:
                return role
        return ""

    def put(self, role: str, settings: RoleSettings) -> None:
        """Set everything of a role. Raises :class:`Conflict` naming an identity that proves another role."""
        if self.settings.get(role) == settings:
            return
        for identity in settings.identities:
            other = self._of_identities.get(identity, role)
            if other != role:
                raise Conflict(f"{identity} proves the role {other} already; an identity proves one role")
        # First of all, because the store may refuse the record.
        self._records.put(_key(role), records.encode(settings))
        self._forget(role)
        self.restore(role, settings)
        self._directory.rights_version += 1

    def delete(self, role: str) -> None:
        """Forget what is set for a role, if anything is."""
        if role in self.settings:
            self._records.delete(_key(role))
            self._forget(role)
            self.activity.forget(role)
            self._directory.rights_version += 1

    def states(self) -> dict[str, RoleState]:
        """Return all roles for which something is set, with their clients."""
        activity = self.activity
        return {
            role: RoleState(
                settings, activity.connections(role), activity.last_seen_ms(role), activity.denied_last_hour(role)
            )
            for role, settings in self.settings.items()
        }

    def _forget(self, role: str) -> None:
        before = self.settings.pop(role, None)
        for identity in before.identities if before is not None else ():
            self._of_identities.pop(identity, None)


def _key(role: str) -> bytes:
    return records.ROLE + role.encode()
