"""Makes certificate authorities and their certificates with openssl. The certificates are valid for two days."""
import subprocess

import cluster

KEY = ("-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def openssl(folder, *arguments):
    subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True, timeout=cluster.START)


def make_authority(folder, name):
    """Writes `name`.pem and `name`.key."""
    openssl(folder, "req", "-x509", *KEY, "-days", 2, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out",
            f"{name}.pem")


def make_certificate(folder, name, authority, names="IP:127.0.0.1,DNS:localhost"):
    """Writes `name`.pem and `name`.key for the hosts `names`."""
    openssl(folder, "req", *KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-days", 2, "-extfile", f"{name}.ext", "-out", f"{name}.pem")
