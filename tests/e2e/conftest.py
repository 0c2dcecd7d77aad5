import pytest

from tests.e2e.commands import Commands


@pytest.fixture(scope="session")
def equipoise():
    """The command line."""
    commands = Commands()
    yield commands
    commands.close()
