"""Three members, TLS, users: what becomes of a store when parts of its etcd go."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreDenied, StoreUnavailable
from dibs.core.limits import ETCD_TRY_MS_MAX
from dibs.core.records import META_KEY, Meta
from dibs.stores.etcd.errors import LostConnection
from dibs.stores.etcd.http2 import SPEAKS_NO_TLS, EtcdConnection
from dibs.stores.etcd.messages import message
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.port import Conflict
from dibs.testing.contract_base import event, key_of, lock, put
from tests import etcd
from tests.programs import WAIT_S_MAX, wait_until
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.etcd import Cluster

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def three(etcd_program: str) -> Iterator[Cluster]:
    with etcd.running(etcd_program, 3) as cluster:
        yield cluster


def counted(store: EtcdStore) -> int:
    found = store.read([META_KEY]).records[META_KEY].record
    return found.token_floor if isinstance(found, Meta) else 0


def count_up(store: EtcdStore, tally: list[int]) -> None:
    """One up, through whatever happens; an outcome that is not known is looked up, as the coordinator would."""
    while True:
        found = store.read([META_KEY]).records[META_KEY]
        number = found.record.token_floor if isinstance(found.record, Meta) else 0
        mine = (number + 1, threading.get_ident())
        try:
            store.commit(
                {
                    META_KEY: found.version,
                    key_of("by"): store.read([key_of("by")]).records[key_of("by")].version,
                },
                {META_KEY: Meta(token_floor=number + 1), key_of("by"): lock("by", token=mine[1])},
                [event("n", token=number + 1)],
            )
            tally.append(number + 1)
            return
        except Conflict:
            continue
        except StoreUnavailable as error:
            if not error.unknown:
                continue
            tally.append(-(number + 1))  # perhaps
            return


def test_a_member_that_is_killed_is_not_missed_and_two_are_reported(three: Cluster) -> None:
    store = EtcdStore(three.location("killed"))
    put(store, lock("before"))
    leader = three.leader()
    leader.kill()
    wait_until(lambda: _writes(store, "one down"), "a new leader is elected")
    other = next(member for member in three.members if member.is_running())
    other.kill()
    with pytest.raises(StoreUnavailable, match="etcd"):
        put(store, lock("two down"))
    for member in (leader, other):
        member.start()
    wait_until(lambda: _writes(store, "all up"), "the cluster is back")
    assert {key for key, _ in store.scan("lock/")} >= {key_of("before"), key_of("one down"), key_of("all up")}
    store.close()


def _writes(store: EtcdStore, name: str) -> bool:
    try:
        put(store, lock(name))
    except (StoreUnavailable, Conflict):
        return False
    return True


@pytest.mark.promise("excl")
def test_a_leader_that_stands_still_under_load_loses_and_doubles_nothing(three: Cluster) -> None:
    wait_until(three.answers, "the cluster is up")
    stores = [EtcdStore(three.location("paused")) for _ in range(3)]
    over, tally = threading.Event(), []  # type: tuple[threading.Event, list[int]]

    def work(store: EtcdStore) -> None:
        while not over.is_set():
            try:
                count_up(store, tally)
            except StoreUnavailable:
                continue

    threads = [threading.Thread(target=work, args=(store,), daemon=True) for store in stores]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(tally) > 30, "the load is there")
    leader = three.leader()
    leader.signal(signal.SIGSTOP)
    before = len(tally)
    try:
        wait_until(lambda: len(tally) > before + 60, "others go on")
    finally:
        leader.signal(signal.SIGCONT)
    after = len(tally)
    wait_until(lambda: len(tally) > after + 30, "all go on")
    over.set()
    for thread in threads:
        thread.join(WAIT_S_MAX)
        assert not thread.is_alive()
    surely = [number for number in tally if number > 0]
    perhaps = {-number for number in tally if number < 0}
    total = counted(stores[0])
    assert len(surely) == len(set(surely))
    assert set(range(1, total + 1)) - set(surely) <= perhaps
    assert [each.token for each in stores[0].events(0, 10_000)] == list(range(1, total + 1))
    for store in stores:
        store.close()


def test_time_does_not_run_backwards_or_ahead_when_the_leader_goes(three: Cluster) -> None:
    from dibs.base.clock import steady_ms

    wait_until(three.answers, "the cluster is up")
    store = EtcdStore(three.location("time"))
    began_ms, first_ms = steady_ms(), store.read(()).now_ms
    put(store, lock("x"))
    leader = three.leader()
    leader.kill()
    wait_until(lambda: _writes(store, "x"), "a new leader is elected")
    leader.start()
    newcomer = EtcdStore(three.location("time"))
    seen = [first_ms]
    for each in (store, newcomer, store, newcomer):
        now_ms = each.read(()).now_ms
        assert now_ms - first_ms <= steady_ms() - began_ms + 50
        put(each, lock("y"))  # what was decided on is told to everybody
        assert now_ms >= seen[-1] - (2_000 if each is newcomer else 0)
        seen.append(max(now_ms, seen[-1]))
    store.close()
    newcomer.close()


# TLS and users


def openssl(need_program: Callable[[str], str], *words: str) -> None:
    subprocess.run([need_program("openssl"), *words], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Path:
    """A certificate authority, what it signed for the server and for a client, and an authority nobody knows."""
    folder = tmp_path_factory.mktemp("keys")
    for parent in (folder, *folder.parents[:3]):
        if parent.stat().st_mode & 0o077 == 0:
            parent.chmod(0o755)  # the server runs as somebody else
    for name in ("ca", "stranger"):
        openssl(
            need_program,
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ),
            *("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),  # Python 3.13 insists
        )
    (folder / "san").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\n"
    )
    for name in ("server", "client"):
        openssl(
            need_program,
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.csr", "-subj", f"/CN={name}"),
        )
        openssl(
            need_program,
            *(
                "x509",
                "-req",
                "-in",
                f"{folder}/{name}.csr",
                "-CA",
                f"{folder}/ca.crt",
                "-CAkey",
                f"{folder}/ca.key",
            ),
            *("-CAcreateserial", "-out", f"{folder}/{name}.crt", "-days", "2", "-extfile", f"{folder}/san"),
        )
    for key in folder.glob("*.key"):
        key.chmod(0o644)
    return folder


def test_tls_with_a_client_certificate_and_no_other_way_in(etcd_program: str, keys: Path) -> None:
    options = ["--cert-file", f"{keys}/server.crt", "--key-file", f"{keys}/server.key"]
    options += ["--client-cert-auth", "--trusted-ca-file", f"{keys}/ca.crt"]
    how: dict[str, Any] = {"ca": f"{keys}/ca.crt", "cert": f"{keys}/client.crt", "key": f"{keys}/client.key"}
    with etcd.running(etcd_program, options=options, tls=keys, **how) as cluster:
        store = EtcdStore(cluster.location())
        put(store, lock("x"), events=(event("x"),))
        assert store.watch(0, 0)
        assert not store.watch(store.events(0, 1)[0].seq, 200)
        for wrong, says in (
            ({"ca": f"{keys}/stranger.crt"}, r"certificate is not accepted.*Check ca, cert and key"),
            ({"cert": None, "key": None}, "does not answer"),
        ):
            stranger = EtcdStore(cluster.location().replace(**wrong))
            with pytest.raises(StoreUnavailable, match=says):
                stranger.read(())
            stranger.close()
        store.close()


@pytest.mark.fault("F-434")
def test_a_url_without_tls_at_a_port_with_it_is_reported_at_once(etcd_program: str, keys: Path) -> None:
    options = ["--cert-file", f"{keys}/server.crt", "--key-file", f"{keys}/server.key"]
    with etcd.running(etcd_program, options=options, tls=keys, ca=f"{keys}/ca.crt") as cluster:
        store = EtcdStore(cluster.location().replace(tls=False, ca=None))
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            store.read(())
        assert is_in_time(began_s, ETCD_TRY_MS_MAX / 1_000)
        assert "it speaks TLS). Write etcds:// instead of etcd://" in caught.value.details
        with pytest.raises(StoreUnavailable) as caught:
            store.commit({}, {}, (event("x"),))
        assert not caught.value.unknown
        store.close()


@pytest.mark.fault("F-434")
def test_a_url_with_tls_at_a_port_without_it_is_reported(etcd_cluster: Cluster) -> None:
    store = EtcdStore(etcd_cluster.location().replace(tls=True))
    with pytest.raises(StoreUnavailable, match="If it speaks no TLS, write etcd:// instead of etcds://"):
        store.read(())
    store.close()


@pytest.mark.fault("F-434")
def test_a_port_that_breaks_off_the_handshake_is_reported_as_one_without_tls() -> None:
    """A member that closes before it has read all of the handshake: the connection is reset."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset() -> None:
            taken, _ = listener.accept()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            taken.recv(1)
            taken.close()

        breaking = threading.Thread(target=reset)
        breaking.start()
        with pytest.raises(LostConnection) as lost:
            EtcdConnection(listener.getsockname(), ssl.create_default_context(), 10_000)
        breaking.join(60)
    assert lost.value.fix == SPEAKS_NO_TLS


@pytest.fixture(scope="module")
def guarded(etcd_program: str) -> Iterator[Cluster]:
    """With users: root, `dibs` for its own prefix, and `stranger` for none. Tokens last a second."""
    with etcd.running(etcd_program, options=("--auth-token-ttl", "1")) as cluster:
        client = cluster.client()

        def ask(call: str, *values: int | str | bytes) -> None:
            request = message(*[each.encode() if isinstance(each, str) else each for each in values])
            client.read(f"/etcdserverpb.Auth/{call}", request, bytes)

        for user, role in (("root", "root"), ("dibs", "dibs"), ("stranger", "stranger")):
            ask("RoleAdd", role)
            ask("UserAdd", user, "s3cr:et/@")
            ask("UserGrantRole", user, role)
        read_write = 2
        ask("RoleGrantPermission", "dibs", message(read_write, b"team//", b"team/0"))
        ask("AuthEnable")
        client.close()
        yield cluster


def test_a_user_with_rights_to_the_prefix_alone_is_enough_and_its_token_is_renewed(guarded: Cluster) -> None:
    store = EtcdStore(guarded.location("team", user="dibs", password="s3cr:et/@"))
    put(store, lock("x"), events=(event("x"),))
    first = store._client._token
    assert not store.watch(store.events(0, 1)[0].seq, 3_500)  # longer than a token lasts
    put(store, lock("y"), events=(event("y"),))
    assert len(store.events(0, 10)) == 2
    store._client._token = "no-such-token.1"
    put(store, lock("z"))
    assert store._client._token not in (first, "no-such-token.1")
    assert [each["ok"] for each in store.probe()] == [True, True, True]
    store.close()


@pytest.mark.fault("F-284")
@pytest.mark.parametrize(
    ("user", "password", "error"),
    [
        ("dibs", "wr0ng", StoreDenied),
        ("nobody", "s3cr:et/@", StoreDenied),
        ("stranger", "s3cr:et/@", StoreDenied),
        (None, "", StoreDenied),
    ],
)
def test_who_may_not_is_told_without_the_password(
    guarded: Cluster, user: str | None, password: str, error: type[Exception]
) -> None:
    store = EtcdStore(guarded.location("team", user=user, password=password))
    with pytest.raises(error) as caught:
        store.read(())
    assert "s3cr" not in str(caught.value)
    assert "wr0ng" not in str(caught.value)
    store.close()


def test_a_user_for_an_etcd_without_users_is_reported(etcd_cluster: Cluster) -> None:
    store = EtcdStore(etcd_cluster.location(user="dibs", password="x"))
    with pytest.raises(StoreDenied, match="has no users"):
        store.read(())
    store.close()
