"""Pure functions for provisioning: trusted certificates, the firewall's rules, nested folders."""

import ipaddress
import posixpath
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from trainer.common.errors import ConfigError


def dfs_trusted(certificates: Mapping[str, str]) -> str:
    """The certificates that every member trusts, each after a line with its host's name.

    Args:
        certificates: each host's own, by name; empty if check mode made none.

    Raises:
        ConfigError: one that could speak for another host.
    """
    return "".join(f"# {host}\n{_own_certificate(host, text)}" for host, text in certificates.items() if text)


def _own_certificate(host: str, text: str) -> str:
    """The one certificate in a text, re-encoded: nothing else that a host may have added reaches the others."""
    try:
        (certificate,) = x509.load_pem_x509_certificates(text.encode())
        certificate.verify_directly_issued_by(certificate)
        signs = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise ConfigError(f"{host}: what it returned is no certificate of its own ({error}); remove /etc/ssl/glusterfs.pem there") from None
    if certificate.subject.rfc4514_string() != f"CN={host}" or signs:
        shown = f"{certificate.subject.rfc4514_string()}{', which signs others' if signs else ''}"
        raise ConfigError(f"{host}: its certificate is for {shown!r}; expected 'CN={host}': remove /etc/ssl/glusterfs.pem there")
    return certificate.public_bytes(Encoding.PEM).decode()


def firewall_rules(provision: Mapping[str, Any], table: str, users: Iterable[Any]) -> str:
    """A file for `nft -f` that replaces our table, and touches nothing else.

    Only packets that open a connection to the given ports are judged: answers to connections that the host itself
    made from such a port pass. Incoming packets are judged by address. Outgoing ones, to this host or another
    member, are judged by user, since all local users share a member's address.

    Args:
        provision: the plan, with the IPv4 and IPv6 addresses or networks of the members, `allowed`, and TCP `ports` and ranges.
        table: name of the table (family `inet`).
        users: uids that may open such connections; root (GlusterFS) always may.
    """
    networks = sorted({ipaddress.ip_network(address) for address in provision["allowed"]}, key=lambda one: (one.version, one))
    four, six = ([str(one).removesuffix("/32").removesuffix("/128") for one in networks if one.version == version] for version in (4, 6))
    opens = f"tcp flags & (fin | syn | rst | ack) == syn tcp dport {{ {', '.join(provision['ports'])} }}"
    numbers = ", ".join(str(number) for number in sorted({0, *map(int, users)}))
    return f"""# Made by Lockstep; changes are lost. Worker ports run code for whoever reaches them.
table inet {table}
delete table inet {table}
table inet {table} {{
{_set("members4", "ipv4_addr", four)}{_set("members6", "ipv6_addr", six)}  chain input {{
    type filter hook input priority -10; policy accept;
    iif "lo" accept
    {opens} jump strangers
  }}
  chain strangers {{
    ip saddr @members4 return
    ip6 saddr @members6 return
    counter drop
  }}
  chain output {{
    type filter hook output priority -10; policy accept;
    {opens} jump other_users
  }}
  chain other_users {{
    meta skuid {{ {numbers} }} return
    oif "lo" counter reject with tcp reset
    ip daddr @members4 counter reject with tcp reset
    ip6 daddr @members6 counter reject with tcp reset
  }}
}}
"""


def _set(name: str, kind: str, elements: list[str]) -> str:
    inside = f"    elements = {{ {', '.join(elements)} }}\n" if elements else ""
    return f"  set {name} {{\n    type {kind}\n    flags interval\n    auto-merge\n{inside}  }}\n"


def inside(path: str, folder: str) -> bool:
    """Return whether a path is a folder or inside that folder; both absolute."""
    return PurePosixPath(posixpath.normpath(path)).is_relative_to(posixpath.normpath(folder))
