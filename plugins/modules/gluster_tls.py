"""Ansible module: one host's certificate for GlusterFS, and the certificates that it trusts."""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gluster_tls
short_description: TLS for GlusterFS on a host
description:
  - C(certificate) makes a key that never leaves the host and a self-signed certificate, and returns the certificate.
  - C(trusted) writes the certificates of all members; from then on GlusterFS accepts and makes connections with TLS only.
    Its processes read this when they start. C(secure-access) is rewritten whenever running processes must be restarted.
  - C(absent) removes what was made here. TLS files that are not Lockstep's are refused, and kept.
options:
  name: {type: str, description: Name of the host in its certificate; needed for C(certificate).}
  volume: {type: str, default: lockstep, description: The only volume that GlusterFS may serve here; others' clients have no certificates.}
  trusted: {type: str, description: "Certificates of all members, each after a line C(# name); needed for C(trusted)."}
  state: {type: str, choices: [certificate, trusted, absent], required: true, description: The wanted state.}
"""

RETURN = """
did: {type: list, returned: always, description: What was changed.}
certificate: {type: str, returned: state=certificate, description: This host's certificate; empty in check mode if there is none yet.}
"""

FOLDER = "/etc/ssl"
LINKS = "/usr/lib/ssl"
"""Where Debian's GlusterFS looks for the files of FOLDER: links are made there."""
ACCESS = host.SECURE_ACCESS
"""File that makes GlusterFS use TLS between its daemons."""
RECORD = "/var/lib/lockstep/tls.json"
"""File that records the digests of the certificates made on this host."""
KINDS = ("key", "pem", "ca")
DAYS = 30 * 365
"""Trust depends on the list of certificates, not on their age."""
RENEW_S = 365 * 86400
REQUEST = """
[req]
prompt = no
distinguished_name = own_name
x509_extensions = own_extensions
[own_name]
CN = {name}
[own_extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
"""
ENTRY = re.compile(r"^# (\S+)\n(-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n)", re.MULTILINE | re.DOTALL)


def main():
    _Tls(AnsibleModule(required_if=[("state", "certificate", ["name"]), ("state", "trusted", ["trusted"])])).act()


class _Tls(host.Change):
    """The host's key and certificate, and the certificates that it trusts."""

    def certificate(self):
        """Ensure a usable key and certificate."""
        self._refuse_foreign()
        self._refuse_other_volumes()
        todo = [] if self._usable() else ["make a certificate"]
        if todo and not self.module.check_mode:
            self._make()
        text = "" if todo and self.module.check_mode else files.read(_tls_path("pem"))
        self.end(todo, certificate=text)

    def trusted(self):
        """Trust the members, and make GlusterFS use TLS."""
        path, access = _tls_path("ca"), ACCESS
        before, after = files.read(path), self.params["trusted"]
        todo = [] if before == after else ["trust the members' certificates"]
        todo += [] if os.path.exists(access) and _linked() else ["switch TLS on"]
        if todo and not self.module.check_mode:
            _make_links()
            # An open connection keeps trusting the certificate that it had; joining or leaving changes none.
            if _replaced(before, after) or not os.path.exists(access):
                os.makedirs(os.path.dirname(access), exist_ok=True)
                files.replace(access, "")
            files.replace(path, after)
        self.end(todo)

    def absent(self):
        """Remove what was made here; a remaining GlusterFS continues without TLS."""
        record = _recorded()
        if record is None:
            self.end([])
        if not self._own_certificate(record):
            kept = f"{host.name()}: {_tls_path('pem')} has been replaced since; GlusterFS's TLS files are kept"
            if not self.module.check_mode:
                files.Record(RECORD).remove()
            self.end(["keep what is not ours"], show=kept)
        if not self.module.check_mode:
            for path in (ACCESS, *(path for kind in KINDS for path in (_link(kind), _tls_path(kind)))):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            files.remove_if_empty(os.path.dirname(ACCESS))
            self.module.run_command(["systemctl", "try-restart", "glusterd"])
            files.Record(RECORD).remove()
        self.end(["remove key and certificates"])

    def _refuse_foreign(self):
        """Refuse TLS files that somebody else put there: their owner's clients rely on them."""
        record = _recorded()
        paths = [ACCESS, *(path for kind in KINDS for path in (_tls_path(kind), _link(kind)))]
        foreign = [path for path in paths if os.path.lexists(path)] if record is None else []
        if record is not None and not self._own_certificate(record):
            foreign = [_tls_path("pem")]
        if foreign:
            self.fail(
                f"{', '.join(foreign)} for GlusterFS's TLS is not Lockstep's, and is not replaced; move it away, "
                "or share a folder of your own: dfs_kind: mounted"
            )

    def _refuse_other_volumes(self):
        """Refuse to close the daemon to clients of other volumes."""
        path = os.path.join(os.path.dirname(ACCESS), "vols")
        others = [name for name in files.names(path) if name != self.params["volume"]]
        if others and not os.path.exists(ACCESS):
            self.fail(
                f"GlusterFS also serves {', '.join(others)}, whose clients have no certificates: with TLS they would be "
                "cut off; use hosts of their own for Lockstep, or a folder in that volume: dfs_kind: mounted"
            )

    def _own_certificate(self, record):
        """Return whether the existing certificate, if any, was made on this host."""
        text = files.read(_tls_path("pem"))
        return not text or _digest(text) in record

    def _usable(self):
        """Return whether the key is root's alone, and the certificate matches it, has the host's name, and is valid for another year."""
        key, pem = _tls_path("key"), _tls_path("pem")
        if not os.path.isfile(key) or not os.path.isfile(pem):
            return False
        status = os.stat(key)
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            return False
        shown = self._openssl("x509", "-in", pem, "-noout", "-subject", "-nameopt", "RFC2253", "-checkend", str(RENEW_S))
        # openssl's text after -checkend is for users; its exit code 0 is for programs.
        named = shown is not None and shown.splitlines()[0] == f"subject=CN={self.params['name']}"
        return named and self._openssl("x509", "-in", pem, "-noout", "-pubkey") == self._openssl("pkey", "-in", key, "-pubout")

    def _openssl(self, *arguments):
        """Output of openssl; None if it fails."""
        code, out, _ = self.module.run_command(["openssl", *arguments])
        return out if code == 0 else None

    def _make(self):
        """Make a key with its certificate; recorded first, so that the files of an interrupted call are known as ours."""
        if self.module.get_bin_path("openssl") is None:
            self.fail("openssl is missing; install it: sudo apt-get install openssl")
        os.makedirs(FOLDER, exist_ok=True)
        work = tempfile.mkdtemp(prefix=".lockstep-", dir=FOLDER)  # root's alone
        try:
            key, pem, request = (os.path.join(work, name) for name in ("key", "pem", "request"))
            files.replace(request, REQUEST.format(name=self.params["name"]))
            curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            self.run("openssl", "req", "-x509", "-config", request, *curve, "-days", str(DAYS), "-keyout", key, "-out", pem)
            os.chmod(key, 0o600)
            os.chmod(pem, 0o644)
            files.Record(RECORD).write({"certificates": [*(_recorded() or []), _digest(files.read(pem))]})
            os.replace(key, _tls_path("key"))
            os.replace(pem, _tls_path("pem"))
        finally:
            shutil.rmtree(work)


def _tls_path(kind):
    """GlusterFS's own names: pem (certificate), key, ca (trusted certificates)."""
    return os.path.join(FOLDER, f"glusterfs.{kind}")


def _link(kind):
    return os.path.join(LINKS, f"glusterfs.{kind}")


def _linked():
    return all(os.path.islink(_link(kind)) and os.readlink(_link(kind)) == _tls_path(kind) for kind in KINDS)


def _make_links():
    os.makedirs(LINKS, exist_ok=True)
    for kind in KINDS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_link(kind))
        os.symlink(_tls_path(kind), _link(kind))


def _recorded():
    """SHA-256 of the certificates made here; None before the first."""
    return files.Record(RECORD).read().get("certificates")


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _replaced(before, after):
    """Return whether a host has another certificate than before."""
    old, new = dict(ENTRY.findall(before)), dict(ENTRY.findall(after))
    return any(name in old and old[name] != text for name, text in new.items())


if __name__ == "__main__":
    main()
