"""The built-in schemas: what the protocol's page says of them, and no more."""

from braidmq.base.schemas import BUILT_IN


def test_the_built_in_schemas_require_what_the_page_says() -> None:
    """All fields of readings; of commands only the action."""
    assert {
        "sensor.Temperature": ["celsius", "timestamp_ms", "sensor_id"],
        "sensor.Humidity": ["percent", "timestamp_ms", "sensor_id"],
        "control.Command": ["action"],
    } == {name: schema["required"] for name, schema in BUILT_IN.items()}
