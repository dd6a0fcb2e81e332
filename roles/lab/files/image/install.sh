# Runs once, while the image is made.
set -eu
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive

# Archives of the machine that builds, when it has the same release; its apt proxy and certificate authorities in any case.
. /etc/os-release
if [ "$ID $VERSION_CODENAME" = "$(cat release)" ]; then
  rm -f /etc/apt/sources.list.d/*.sources
  cp sources.list /etc/apt/sources.list
fi
cp apt.conf /etc/apt/apt.conf.d/90lockstep-lab
for authority in *.crt; do
  if [ -e "$authority" ]; then
    mkdir -p /usr/local/share/ca-certificates /etc/ssl/certs
    cp "$authority" /usr/local/share/ca-certificates/
    cat "$authority" >> /etc/ssl/certs/ca-certificates.crt
  fi
done

apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends \
  openssh-server python3 sudo iproute2 procps ca-certificates rsync systemd systemd-sysv dbus
update-ca-certificates
apt-get clean
rm -rf /var/lib/apt/lists/*
rm -f /usr/sbin/policy-rc.d # images from registries forbid services with it

# Devices, clock, kernel settings and terminals are the machine's, not the node's.
systemctl mask systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-udev-trigger.service \
  systemd-logind.service systemd-timesyncd.service systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service \
  systemd-remount-fs.service getty.target console-getty.service

# Each node brings its own host key and names; see lockstep-lab.
rm -f /etc/ssh/ssh_host_*
install -m 0644 sshd.conf /etc/ssh/sshd_config.d/lockstep-lab.conf
install -m 0755 lockstep-lab /usr/local/sbin/lockstep-lab
install -m 0644 lockstep-lab.service /etc/systemd/system/lockstep-lab.service
systemctl enable lockstep-lab.service ssh.service

useradd --create-home --shell /bin/bash lockstep
echo 'lockstep ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/lockstep
chmod 0440 /etc/sudoers.d/lockstep
