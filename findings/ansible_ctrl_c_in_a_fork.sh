#!/usr/bin/env bash
# ansible-core 2.19.14: Ctrl-C that comes while a task's process is being forked does not end ansible-playbook.
#
# Ansible's handler of SIGINT raises KeyboardInterrupt. Python calls the functions registered with os.register_at_fork inside of os.fork, and
# drops what is raised in them: `logging` registers two for the parent, so a signal can arrive there in any playbook. Here a callback plugin
# makes it arrive there each time.
#
# Expected: the first Ctrl-C ends the command: "User interrupted execution", exit code 99.
# Seen: "Exception ignored in", then the play goes on to its end with exit code 0. Where processes of other hosts run at that moment, the
# handler has ended them before, and the message is "A worker was found in a dead state".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet ansible-core==2.19.14 jinja2==3.1.6 PyYAML==6.0.3 packaging==26.3 resolvelib==1.2.1 cryptography==50.0.2

mkdir callbacks
cat > callbacks/ctrl_c.py <<'PLUGIN'
import os
import signal

from ansible.plugins.callback import CallbackBase

pressed = []


def press():
    if not pressed:
        pressed.append(True)
        os.kill(os.getpid(), signal.SIGINT)


class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "notification", "ctrl_c"

    def v2_playbook_on_start(self, playbook):
        os.register_at_fork(after_in_parent=press)
PLUGIN
cat > play.yml <<'PLAY'
- hosts: localhost
  gather_facts: false
  tasks:
    - name: During this one, Ctrl-C
      ansible.builtin.command: touch first
    - name: This one should not begin
      ansible.builtin.command: touch second
PLAY

code=0
export ANSIBLE_CALLBACK_PLUGINS=callbacks ANSIBLE_NOCOLOR=1
python=ansible_python_interpreter=$folder/venv/bin/python
venv/bin/ansible-playbook -i localhost, -c local -e "$python" play.yml > out 2>&1 || code=$?
cat out
if [ "$code" -eq 0 ] && [ -e second ] && grep -q "Exception ignored in.*press" out && ! grep -q "User interrupted execution" out; then
  echo "ansible-core 2.19.14: as seen before: Ctrl-C in a fork did not end the command"
else
  echo "ansible-core 2.19.14: changed: exit code $code" >&2
  exit 1
fi
