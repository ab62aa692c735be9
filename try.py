import sys,time,pathlib,tempfile,json,os,subprocess
sys.path.insert(0,"/work/main")
import phalanx
from phalanx import connection
from phalanx.connection import Connection
from tests.support.cluster import Cluster
from tests.support.training import train
tmp=pathlib.Path(tempfile.mkdtemp(dir="/tmp/px/w"))
with Cluster(tmp, agents=2, gpus_per_agent=2) as c:
    connection.use(Connection(c.address(), c.token, str(c.ca)))
    call=phalanx.gpu_function(gpus=4,nodes=2)(train).spawn(12.0, int(sys.argv[1]), 0.05)
    for _ in range(8):
        time.sleep(1.5)
        s=call.status(); print(s.state, s.step, repr(s.reason), [ (x.error) for x in [s]][0].message[:300])
        try: print(*call.steps(), sep="\n")
        except Exception as e: print(repr(e)[:200])
        if s.state in ("failed","succeeded"): break
    subprocess.run("tail -3 %s/logs/*.log; find / -path /proc -prune -o -name keeper.log -newer %s -print 2>/dev/null | xargs tail -n 5"%(tmp,"/tmp/px/w/try.py"),shell=True)
    connection.disconnect()
