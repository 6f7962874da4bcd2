"""Counts the URLs in a capture, embed.py 'replay web.pcap', or in live traffic, embed.py 'rx eth0' 100
(stops after 100 exchanges). PYTHONPATH=PREFIX/share/streamline/python"""

import collections
import sys

import streamline

if len(sys.argv) < 2:
    sys.exit("usage: embed.py SOURCE [EXCHANGES]")
most = int(sys.argv[2]) if len(sys.argv) > 2 else 0

log = streamline.output()
request = f"{sys.argv[1]} | tcp | http |exchange weblog {log.path}"
urls = collections.Counter()
with streamline.run(request) as path:
    for at, line in enumerate(log, 1):
        if at == most:
            path.stop()
        # 10.0.0.1 - - [23/Nov/2026:15:00:00 +0000] "GET /index.html HTTP/1.1" 200 ...
        urls[line.split(" ")[6]] += 1
for url, times in sorted(urls.items()):
    print(times, url)
print(f"{path.report()['lost']} lost", file=sys.stderr)
