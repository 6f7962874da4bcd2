Streamline for Linux 6.1 or newer with glibc 2.34 or newer.

As root, from the directory of this file:

    cp -R bin include lib share /usr/local/ && ldconfig

The daemon of the machine, which several users share (optional):

    systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload
    systemctl enable --now streamline.socket

To remove all of it: stop the units, and delete the files that `find bin include lib share -type f` lists
here below /usr/local.
