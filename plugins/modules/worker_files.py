"""Ansible module: the small files of a run, written whole or not at all."""

import os

from ansible.module_utils import lockstep_files as files
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: worker_files
short_description: Write several small files in one call
description: Each file is complete or absent. A file that already has its content is left alone.
options:
  files:
    type: list
    elements: dict
    required: true
    description: A list of dicts with C(path) (absolute), C(content), and optionally C(mode) (octal digits, 0640 by default).
"""

RETURN = """
written: {type: list, returned: always, description: Paths of the files that were new or had other content.}
"""


def main():
    module = AnsibleModule()
    wanted = module.params["files"]
    changed = [file["path"] for file in wanted if files.differs(file)]
    if not module.check_mode:
        os.umask(files.OTHERS)
        for file in wanted:
            files.write(module, file)
    module.exit_json(changed=bool(changed), written=changed)


if __name__ == "__main__":
    main()
