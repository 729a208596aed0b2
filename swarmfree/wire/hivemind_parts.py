"""What the directory uses of hivemind, loaded without the rest of it.

`import hivemind` runs a file that loads averagers, optimizers and experts, and SciPy with them: 45
MB and 0.6 s of processor in each peer, for nothing that is used here. So the package is put in
place without running that file; its parts are loaded as usual.
"""

from __future__ import annotations

import importlib.util
import sys

if "hivemind" not in sys.modules:
    _spec = importlib.util.find_spec("hivemind")
    assert _spec is not None, "hivemind is installed with this package"
    sys.modules["hivemind"] = importlib.util.module_from_spec(_spec)

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.serializer import MSGPackSerializer

__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "MSGPackSerializer",
    "Multiaddr",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "RSAPrivateKey",
    "RSASignatureValidator",
    "ValidationError",
    "dht_pb2",
    "use_hivemind_log_handler",
]
