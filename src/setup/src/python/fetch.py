"""Fetches one file to PART, going on where PART ends: fetch.py URL PART.

Prints "total BYTES" once and "at BYTES" as it goes: whoever reads these lines draws the bar, and a reader that is gone ends
this process at its next line. The certificates and the proxy of pip's own configuration are honoured.
Exit status: 0 all is there; 2 try again, what came is kept; 3 no use trying again.
"""

import os
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 60


def pip_settings():
    """pip's configuration: files and environment, as pip itself resolves them."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    settings = {}
    for line in answer.stdout.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            name = key.rsplit(".", 1)[-1]
            # the environment is listed last or first depending on pip's version, and always wins
            if name not in settings or key.startswith(":env:"):
                settings[name] = value.strip("'\"")
    return settings


def opener(settings):
    context = ssl.create_default_context()
    bundles = [settings.get("cert"), os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE")]
    if not context.get_ca_certs():
        # an interpreter that does not know the system's certificates: take those that pip brings along
        try:
            from pip._vendor import certifi

            bundles.append(certifi.where())
        except ImportError:
            pass
    for bundle in bundles:
        if bundle and os.path.isfile(bundle):
            context.load_verify_locations(bundle)
    handlers = [urllib.request.HTTPSHandler(context=context)]
    if settings.get("proxy"):
        handlers.append(urllib.request.ProxyHandler({"http": settings["proxy"], "https": settings["proxy"]}))
    return urllib.request.build_opener(*handlers)


def say(word, count):
    print(word, count, flush=True)


def copy(source, target, at):
    while True:
        chunk = source.read(CHUNK_BYTES)
        if not chunk:
            return at
        target.write(chunk)
        at += len(chunk)
        say("at", at)


def fetch(url, part):
    if urllib.parse.urlsplit(url).scheme == "file":
        shutil.copyfile(urllib.request.url2pathname(urllib.parse.urlsplit(url).path), part)
        return 0
    have = os.path.getsize(part) if os.path.exists(part) else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = opener(pip_settings()).open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            # nothing is left after this offset: either all is there already or the part is not ours
            whole = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            if whole == str(have):
                say("total", have)
                return 0
            os.truncate(part, 0)
            return 2
        print(f"the server answers {error.code} {error.reason}", file=sys.stderr)
        return 2 if error.code in (408, 429) or error.code >= 500 else 3
    with response:
        begins = 0
        if response.status == 206:
            begins = int(response.headers["Content-Range"].split()[1].split("-")[0])
            if begins != have:
                print(f"asked from byte {have}, got from byte {begins}", file=sys.stderr)
                return 3
        length = response.headers.get("Content-Length")
        total = begins + int(length) if length else None
        if total is not None:
            say("total", total)
        with open(part, "r+b" if begins else "wb") as target:
            target.seek(begins)
            at = copy(response, target, begins)
        if total is not None and at < total:
            print(f"the connection ended after {at} of {total} bytes", file=sys.stderr)
            return 2
    return 0


def main():
    try:
        return fetch(*sys.argv[1:])
    except BrokenPipeError:
        return 2
    except KeyboardInterrupt:
        return 2
    except ssl.SSLCertVerificationError as error:
        print(error, file=sys.stderr)
        return 3
    except urllib.error.URLError as error:
        print(error.reason, file=sys.stderr)
        return 3 if isinstance(error.reason, ssl.SSLCertVerificationError) else 2
    except OSError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    status = main()
    # not by exit(): it would complain about a reader that is gone
    os._exit(status)
