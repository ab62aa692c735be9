"""Commit of the clone -> main of /work/main: files that others also changed are merged in the working tree."""
import subprocess, sys, os, tempfile
T, M = "/tmp/px/w/tree", "/work/main"
def git(d, *a, data=None, check=True):
    r = subprocess.run(["git", "-C", d, *a], capture_output=True, input=data)
    if check and r.returncode: sys.exit(f"git {a}: {r.stderr.decode()}")
    return r.stdout
git(T, "fetch", "-q", "origin")
r = subprocess.run(["git", "-C", T, "rebase", "-q", "origin/main"], capture_output=True, text=True)
if r.returncode: sys.exit("rebase: " + r.stdout + r.stderr)
base, new = git(T, "rev-parse", "origin/main").decode().strip(), git(T, "rev-parse", "HEAD").decode().strip()
if base == new: sys.exit("nothing to push")
files = git(T, "diff", "--name-only", "-z", base, new).decode().split("\0")[:-1]
if "--dry" in sys.argv: print(files); sys.exit()
plan = []
for f in files:
    old = git(T, "show", f"{base}:{f}", check=False); neu = git(T, "show", f"{new}:{f}")
    p = os.path.join(M, f)
    cur = open(p, "rb").read() if os.path.exists(p) else b""
    if cur in (old, neu): out = neu
    else:
        with tempfile.TemporaryDirectory() as d:
            for n, x in (("cur", cur), ("old", old), ("new", neu)): open(f"{d}/{n}", "wb").write(x)
            r = subprocess.run(["git", "merge-file", "-p", f"{d}/cur", f"{d}/old", f"{d}/new"], capture_output=True)
            if r.returncode:
                r = subprocess.run(["git", "merge-file", "-p", "--ours", f"{d}/cur", f"{d}/old", f"{d}/new"], capture_output=True)
                lost = set(neu.splitlines()) - set(old.splitlines()) - set(r.stdout.splitlines())
                print("ours", f, lost)
            if r.returncode or (b"<<<<<<<" in r.stdout) or ("lost" in dir() and lost and f not in sys.argv):
                open("/tmp/px/w/conflict.txt","wb").write(r.stdout); sys.exit(f"conflict in {f}: /tmp/px/w/conflict.txt")
            out = r.stdout
        print("merged", f)
    if out != cur: plan.append((p, cur, out))
head = git(M, "rev-parse", "main").decode().strip()
if head != base: sys.exit("main moved, again")
git(M, "fetch", "-q", T, new)
for p, cur, out in plan:
    now = open(p, "rb").read() if os.path.exists(p) else b""
    if now != cur: sys.exit(f"{p} changed meanwhile; run again")
for p, cur, out in plan:
    os.makedirs(os.path.dirname(p), exist_ok=True)
    mode = os.stat(p).st_mode if os.path.exists(p) else 0o644
    open(p + ".px", "wb").write(out); os.chmod(p + ".px", mode & 0o777); os.replace(p + ".px", p)
git(M, "update-ref", "refs/heads/main", new, base)
for f in files:
    line = git(T, "ls-tree", new, f).decode().split()
    git(M, "update-index", "--add", "--cacheinfo", f"{line[0]},{line[2]},{f}")
print("pushed", new[:8], len(files), "files")
