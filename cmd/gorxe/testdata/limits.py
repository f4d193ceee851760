# Prints the limits of the device, and how many objects can be created, with the error of the next.
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPInitAttr, QPCap
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
import pyverbs.enums as e
ctx = Context(name="rxe0")
a = ctx.query_device()
print(a.max_qp, a.max_mr, a.max_mr_size)
pd, cq = PD(ctx), CQ(ctx, 10)
def count(create):
    made = []
    try:
        while len(made) < 100:
            made.append(create())
    except PyverbsRDMAError as x:
        print(len(made), x.error_code)
    for o in made:
        o.close()
count(lambda: QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap())))
count(lambda: MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE))
count(lambda: MR(pd, 1 << 19, e.IBV_ACCESS_LOCAL_WRITE))
