"""The configuration as typed models: names, defaults, bounds and what must agree with what.

Nothing here reads a file, the environment or a flag (`sources` does): a model is valid or it is
not, on any machine. `loading` makes one from all its sources, `text` prints it.
"""

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from braidmq.base.limits import KIB, MIB
from braidmq.broker import quotas
from braidmq.transport.binding import shown

DURATION_S_MAX: Final = 10 * 365 * 24 * 3600
"""Ten years: a longer duration is a typing error, and timers would overflow."""

DURATION_MS_MAX: Final = DURATION_S_MAX * 1000

COUNT_MAX: Final = 2**31 - 1
"""The largest count of connections or messages."""

SIZE_BYTES_MAX: Final = 2**63 - 1
"""The largest signed 64-bit file offset."""

SEGMENT_BYTES_MIN: Final = 64 * KIB
"""With smaller segments the log would be more directory entries than data."""

SEGMENT_BYTES_MAX: Final = 1024 * MIB
"""Index rows hold offsets as u32, and the last batch may overshoot a segment's size."""

PORT_MAX: Final = 65_535

NAME_CHARS_MAX: Final = 128
"""A principal's name goes into records and log lines."""

STRANDS: Final = ("blip", "vibe", "qumbed")
"""The sections that may override [delivery] for themselves."""

LISTENERS: Final = ("blip", "vibe", "qumbed", "http", "flight")
"""The sections that have an address."""

DEV_PRINCIPAL: Final = "dev"
"""The principal of dev-key; under --dev no configured key may have the name."""

MASK: Final = "********"
"""Shown instead of a secret."""

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_FSYNC_NUMBERED = re.compile(r"(?:every_n|interval_ms):([1-9][0-9]{0,9})")


def wrong(problem: str) -> PydanticCustomError:
    """Return an error with our own text, which must not contain the value."""
    return PydanticCustomError("wrong", "{problem}", {"problem": problem})


def _not_bool(value: object) -> object:
    # In Python True is the number 1, but `port = true` is a mistake.
    if isinstance(value, bool):
        raise wrong("must be a number, not true or false")
    return value


def _comma_separated(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _not_empty(value: object) -> object:
    if value == "":
        raise wrong("must not be empty")
    return value


def _no_control_characters(value: str) -> str:
    if not value.isprintable():
        raise wrong("must not hold control characters")
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def known(value: str) -> str:
        if value not in words:
            raise wrong(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return value

    return known


Whole = Annotated[int, BeforeValidator(_not_bool)]
Count = Annotated[Whole, Field(ge=1, le=COUNT_MAX)]
CountOrOff = Annotated[Whole, Field(ge=0, le=COUNT_MAX)]
SizeBytes = Annotated[Whole, Field(ge=1, le=SIZE_BYTES_MAX)]
SizeBytesOrOff = Annotated[Whole, Field(ge=0, le=SIZE_BYTES_MAX)]
Milliseconds = Annotated[Whole, Field(ge=1, le=DURATION_MS_MAX)]
MillisecondsOrOff = Annotated[Whole, Field(ge=0, le=DURATION_MS_MAX)]
Number = Annotated[float, BeforeValidator(_not_bool)]
Seconds = Annotated[Number, Field(gt=0, le=DURATION_S_MAX)]
SecondsOrOff = Annotated[Number, Field(ge=0, le=DURATION_S_MAX)]
HoursOrOff = Annotated[Number, Field(ge=0, le=DURATION_S_MAX / 3600)]
Port = Annotated[Whole, Field(ge=0, le=PORT_MAX)]
FilePath = Annotated[Path, BeforeValidator(_not_empty)]
Texts = Annotated[list[str], BeforeValidator(_comma_separated)]
Text = Annotated[str, BeforeValidator(_not_empty), AfterValidator(_no_control_characters)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class DeliveryConfig(Section):
    """How messages are delivered, retried and expired."""

    max_retries: Count = 5
    retry_backoff_ms: Milliseconds = 5_000
    retry_backoff_max_ms: Milliseconds = 60_000
    message_ttl_ms: MillisecondsOrOff = 0
    window: Count = 1_024
    window_bytes: SizeBytes = 16 * MIB
    dedup_window_s: SecondsOrOff = 120.0


class DeliveryOverrides(Section):
    """The keys of [delivery] in a strand's own section; None keeps the common value."""

    max_retries: Count | None = None
    retry_backoff_ms: Milliseconds | None = None
    retry_backoff_max_ms: Milliseconds | None = None
    message_ttl_ms: MillisecondsOrOff | None = None
    window: Count | None = None
    window_bytes: SizeBytes | None = None
    dedup_window_s: SecondsOrOff | None = None


class ListenerConfig(Section):
    """One listening address."""

    enabled: bool = True
    host: Text = "127.0.0.1"
    port: Port = 0
    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None

    @model_validator(mode="before")
    @classmethod
    def _off_is_no_host(cls, data: object) -> object:
        # So that a file or a variable can say it as the flags do: `--vibe off`.
        if isinstance(data, dict) and data.get("host") == "off":
            rest = {key: value for key, value in data.items() if key != "host"}
            return {**rest, "enabled": False}
        return data

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not bare or any(character in bare for character in "[]/@ "):
            raise wrong("must be a host name or an IP address")
        if ":" in bare:
            try:
                ipaddress.IPv6Address(bare)
            except ValueError:
                raise wrong("must be a host name or an IP address, without a port") from None
        return bare

    @property
    def address(self) -> str:
        """The address as `H:P`, with brackets around IPv6."""
        return shown(self.host, self.port)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        # Other names are not resolved: the answer must not depend on the machine.
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class BlipConfig(ListenerConfig, DeliveryOverrides):
    """The Blip strand, TCP."""

    port: Port = 5555
    subscription_lease_s: Seconds = 86_400.0
    subscription_lease_qos0_s: Seconds = 300.0


class VibeConfig(ListenerConfig, DeliveryOverrides):
    """The Vibe strand, TCP."""

    port: Port = 2925
    max_message_bytes: Annotated[Whole, Field(ge=4096, le=16 * MIB)] = MIB
    auto_create: bool = True
    ack_timeout_ms: Milliseconds = 30_000


class QumbedConfig(ListenerConfig, DeliveryOverrides):
    """The Qumbed strand, QUIC over UDP."""

    port: Port = 6121
    auth: Annotated[str, AfterValidator(_one_of("none", "key", "mtls"))] = "key"
    tls_ca: FilePath | None = None
    durable: bool = True
    # Unlike in [delivery], a message counts until the peer's QUIC stack has received it.
    window_bytes: SizeBytes = 256 * KIB
    route: Annotated[str, AfterValidator(_one_of("recipient", "all"))] = "recipient"
    gateway: Annotated[str, AfterValidator(_one_of("seal", "off"))] = "seal"
    offline_s: SecondsOrOff = 0.0
    public_addr: Text | None = None


class HttpConfig(ListenerConfig):
    """Health, metrics and the JSON API."""

    port: Port = 9100


class FlightConfig(ListenerConfig):
    """The Arrow Flight endpoint, for Spark on other machines."""

    port: Port = 8815
    stall_timeout_s: SecondsOrOff = 300.0


class WalConfig(Section):
    """The write-ahead log."""

    fsync: str = "always"
    segment_bytes: Annotated[Whole, Field(ge=SEGMENT_BYTES_MIN, le=SEGMENT_BYTES_MAX)] = (
        64 * MIB
    )
    snapshot_interval_s: Seconds = 30.0
    retention_hours: HoursOrOff = 168.0
    retention_bytes: SizeBytesOrOff = 0
    retention_force: bool = False

    @field_validator("fsync")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        if policy not in {"always", "none"} and not _FSYNC_NUMBERED.fullmatch(policy):
            raise wrong(
                "must be always, none, every_n:N or interval_ms:M with a number from 1 on"
            )
        return policy


class LimitsConfig(Section):
    """The limits of the broker."""

    connections: Count = 10_000
    unauthenticated_connections: Annotated[Whole, Field(ge=64, le=COUNT_MAX)] = 1_000
    connections_per_ip: CountOrOff = 0
    handshake_timeout_s: Seconds = 10.0
    idle_timeout_s: SecondsOrOff = 0.0
    messages_per_s: CountOrOff = 0
    max_memory_bytes: SizeBytes = 512 * MIB
    output_buffer_bytes: SizeBytes = MIB
    drain_s: SecondsOrOff = 5.0
    downtime_max_s: SecondsOrOff = 86_400.0


class QuotasBase(Section):
    """Quotas by their names, which are those of `braidmq.broker.quotas`."""

    def given(self) -> dict[str, int]:
        """Return the quotas that are set."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}


def _quota_fields(*, defaults: bool) -> dict[str, Any]:
    kind: Any = SizeBytesOrOff if defaults else SizeBytesOrOff | None
    return {
        name: (kind, default if defaults else None) for name, default in quotas.DEFAULTS.items()
    }


if TYPE_CHECKING:

    class QuotasConfig(QuotasBase):
        """How much each principal may hold of what all principals share."""

    class QuotaOverrides(QuotasBase):
        """The quotas of one key; None keeps the value of [quotas]."""

else:  # made from the table, so that a new quota is one line there
    QuotasConfig = create_model(
        "QuotasConfig", __base__=QuotasBase, **_quota_fields(defaults=True)
    )
    QuotaOverrides = create_model(
        "QuotaOverrides", __base__=QuotasBase, **_quota_fields(defaults=False)
    )


class KeyConfig(Section):
    """One API key: its principal's name, its hash, its permissions and its own quotas."""

    name: Annotated[Text, Field(max_length=NAME_CHARS_MAX)]
    hash: str = Field(repr=False)
    publish: Texts = []
    subscribe: Texts = []
    admin: bool = False
    quotas: QuotaOverrides = QuotaOverrides()

    @field_validator("hash")
    @classmethod
    def _sha256_in_hex(cls, value: str) -> str:
        if not _HASH.fullmatch(value):
            raise wrong("must be sha256: and 64 hex digits, as 'braidmq keys new' prints it")
        return value


class AuthConfig(Section):
    """The API keys."""

    keys: list[KeyConfig] = []

    @field_validator("keys")
    @classmethod
    def _each_once(cls, keys: list[KeyConfig]) -> list[KeyConfig]:
        for number, key in enumerate(keys):
            if any(key.name == other.name for other in keys[:number]):
                raise wrong(f"two keys have the name {key.name!r}")
            if any(key.hash == other.hash for other in keys[:number]):
                raise wrong(f"key {key.name!r} has the hash of another key")
        return keys


class Config(Section):
    """Everything that can be set; the attribute names are those of the file."""

    data_dir: FilePath = Path("data")
    schemas_dir: FilePath | None = None
    blip: BlipConfig = BlipConfig()
    vibe: VibeConfig = VibeConfig()
    qumbed: QumbedConfig = QumbedConfig()
    http: HttpConfig = HttpConfig()
    flight: FlightConfig = FlightConfig()
    wal: WalConfig = WalConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    limits: LimitsConfig = LimitsConfig()
    quotas: QuotasConfig = QuotasConfig()
    auth: AuthConfig = AuthConfig()
    dev: bool = False

    @model_validator(mode="before")
    @classmethod
    def _dev_asks_for_no_key(cls, data: object) -> object:
        # Elsewhere Qumbed is open only where the configuration says so.
        if not isinstance(data, dict) or not data.get("dev"):
            return data
        qumbed = data.get("qumbed", {})
        if isinstance(qumbed, dict) and "auth" not in qumbed:
            return {**data, "qumbed": {**qumbed, "auth": "none"}}
        return data

    def listeners(self) -> list[tuple[str, ListenerConfig]]:
        """Return every section that has an address, with its name."""
        return [(name, getattr(self, name)) for name in LISTENERS]


def delivery_for(config: Config, strand: str) -> DeliveryConfig:
    """Return [delivery] with the overrides of *strand*'s section."""
    assert strand in STRANDS
    section = getattr(config, strand)
    own = {name: getattr(section, name) for name in DeliveryConfig.model_fields}
    return config.delivery.model_copy(
        update={name: value for name, value in own.items() if value is not None}
    )


def quotas_for(defaults: QuotasConfig, key: KeyConfig | None = None) -> quotas.Quotas:
    """Return the quotas of *key*'s principal; without a key, of every other principal."""
    own = {} if key is None else key.quotas.given()
    return quotas.Quotas({**defaults.given(), **own})
