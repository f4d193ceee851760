/* verbs-peer: libibverbs by remote control.
 *
 * conversation.h describes how it is controlled. Its controller can play every part of a
 * conversation between two RDMA NICs.
 *
 *   open   dev                                      -> gid i=.. addr=..   (a line for each), ok
 *   mr     i size access                            -> ok addr lkey rkey
 *   mw     i mr qp off len access type(1|2)         -> ok rkey            bind a memory window
 *   linv   i inv                                      LOCAL_INV of a key
 *   srq    i depth
 *   qp     i type(rc|uc|ud) sq rq srq inline new    -> ok qpn
 *          new=1: with FLUSH and ATOMIC_WRITE
 *   init   i access qkey
 *   rtr    i mtu dqpn psn gid sgid rnr rd tclass hop  (ud: none of them)
 *   rts    i psn timeout retry rnrretry rd            (uc, ud: psn)
 *   err i, reset i, state i                         -> ok state
 *   post   i op id n mr off len step rva rkey rstep imm inv cmp swap
 *          flags(s signaled, f fence, o solicited, i inline) gid sgid dqpn qkey
 *                                                     n requests; offsets advance by step and rstep
 *   flush  i id rva len rkey place level              libibverbs' numbers; like awrite only if
 *                                                     libibverbs supports FLUSH
 *   awrite i id mr off rva rkey                       ATOMIC_WRITE of 8 bytes
 *   recv   i|srq id n mr off len step
 *   poll   i cq(s|r) n ms                           -> wc ... (a line for each), ok n
 *   fill, check  mr off len seed n step             n blocks; block k has the pattern of seed + k
 *   peek mr off -> ok v;  poke mr off v             8 bytes, host order
 *   attach i gid, detach i gid                      multicast group
 *   free   what(qp|mr|srq|mw) i
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include "conversation.h"

enum { MAX = 256, CQ_DEPTH = 8192 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mrs[MAX];
static struct ibv_mw *mws[MAX];
static struct ibv_srq *srqs[MAX];
static struct {
	struct ibv_qp *qp;
	struct ibv_cq *scq, *rcq;
	enum ibv_qp_type type;
	uint32_t inline_max;
} qps[MAX];

static int slot(const char *key) { return (int)(num(key, 0) % MAX); }

/* ---- objects ---- */

static void cmd_open(void)
{
	const char *want = text("dev", NULL);
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; i < n && !ctx; i++)
		if (!want || !strcmp(want, ibv_get_device_name(list[i]))) ctx = ibv_open_device(list[i]);
	if (!ctx) { refuse("no such device"); return; }
	if (!(pd = ibv_alloc_pd(ctx))) { fail("alloc_pd"); return; }
	for (int i = 0; i < 16; i++) {
		union ibv_gid g;
		char a[INET6_ADDRSTRLEN];
		if (ibv_query_gid(ctx, 1, i, &g)) break;
		if (!g.global.interface_id && !g.global.subnet_prefix) continue;
		printf("gid i=%d addr=%s\n", i, inet_ntop(AF_INET6, &g, a, sizeof a));
	}
	ok();
}

static void cmd_mr(void)
{
	int i = slot("i");
	size_t size = num("size", 4096);
	void *mem = NULL;
	if (posix_memalign(&mem, 4096, (size + 4095) & ~4095UL)) { refuse("no memory"); return; }
	memset(mem, 0, size);
	if (!(mrs[i] = ibv_reg_mr(pd, mem, size, (int)num("access", 15)))) { fail("reg_mr"); return; }
	printf("ok addr=%llu lkey=%u rkey=%u\n", (unsigned long long)(uintptr_t)mem, mrs[i]->lkey, mrs[i]->rkey);
}

static char *at(const char *key) { return (char *)mrs[slot(key)]->addr + num("off", 0); }

static void cmd_mw(void)
{
	int i = slot("i");
	struct ibv_qp *qp = qps[slot("qp")].qp;
	int type = num("type", 2) == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
	if (!(mws[i] = ibv_alloc_mw(pd, type))) { fail("alloc_mw"); return; }
	struct ibv_send_wr wr = { .wr_id = 0xb1d, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.bind_mw.mw = mws[i];
	wr.bind_mw.rkey = ibv_inc_rkey(mws[i]->rkey);
	wr.bind_mw.bind_info.mr = mrs[slot("mr")];
	wr.bind_mw.bind_info.addr = (uintptr_t)at("mr");
	wr.bind_mw.bind_info.length = num("len", 4096);
	wr.bind_mw.bind_info.mw_access_flags = (int)num("access", IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_mw_bind one = { .wr_id = wr.wr_id, .send_flags = wr.send_flags, .bind_info = wr.bind_mw.bind_info };
	errno = type == IBV_MW_TYPE_1 ? ibv_bind_mw(qp, mws[i], &one) : ibv_post_send(qp, &wr, &bad);
	if (errno) { fail("bind_mw"); return; }
	if (type == IBV_MW_TYPE_2) mws[i]->rkey = wr.bind_mw.rkey;
	printf("ok rkey=%u\n", mws[i]->rkey);
}

static void cmd_linv(void)
{
	struct ibv_send_wr wr = { .wr_id = 0x11f, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.invalidate_rkey = num("inv", 0);
	if ((errno = ibv_post_send(qps[slot("i")].qp, &wr, &bad))) fail("local_inv");
	else ok();
}

static void cmd_srq(void)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = num("depth", 256), .max_sge = 1 } };
	if (!(srqs[slot("i")] = ibv_create_srq(pd, &a))) fail("create_srq");
	else ok();
}

/* Operations that ibv_post_send lacks need a QP that was created for them. */
static struct ibv_qp *create_new(const struct ibv_qp_init_attr *a)
{
#ifdef WITH_FLUSH
	struct ibv_qp_init_attr_ex x = {
		.send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq, .cap = a->cap, .qp_type = a->qp_type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_FLUSH |
			IBV_QP_EX_WITH_ATOMIC_WRITE,
	};
	return ibv_create_qp_ex(ctx, &x);
#else
	(void)a;
	errno = ENOTSUP;
	return NULL;
#endif
}

static void cmd_qp(void)
{
	int i = slot("i");
	const char *t = text("type", "rc");
	qps[i].type = !strcmp(t, "ud") ? IBV_QPT_UD : !strcmp(t, "uc") ? IBV_QPT_UC : IBV_QPT_RC;
	qps[i].scq = ibv_create_cq(ctx, CQ_DEPTH, NULL, NULL, 0);
	qps[i].rcq = ibv_create_cq(ctx, CQ_DEPTH, NULL, NULL, 0);
	if (!qps[i].scq || !qps[i].rcq) { fail("create_cq"); return; }
	struct ibv_qp_init_attr a = {
		.send_cq = qps[i].scq, .recv_cq = qps[i].rcq, .qp_type = qps[i].type,
		.srq = text("srq", NULL) ? srqs[slot("srq")] : NULL,
		.cap = { num("sq", 512), num("rq", 512), 1, 1, num("inline", 0) },
	};
	qps[i].qp = num("new", 0) ? create_new(&a) : ibv_create_qp(pd, &a);
	if (!qps[i].qp) { fail("create_qp"); return; }
	printf("ok qpn=%u\n", qps[i].qp->qp_num);
}

static void cmd_free(void)
{
	int i = slot("i"), e = 0;
	const char *what = text("what", "");
	if (!strcmp(what, "qp") && qps[i].qp) {
		e = ibv_destroy_qp(qps[i].qp);
		ibv_destroy_cq(qps[i].scq);
		ibv_destroy_cq(qps[i].rcq);
		qps[i].qp = NULL;
	} else if (!strcmp(what, "mr") && mrs[i]) {
		void *mem = mrs[i]->addr;
		if (!(e = ibv_dereg_mr(mrs[i]))) free(mem);
		mrs[i] = NULL;
	} else if (!strcmp(what, "mw") && mws[i]) {
		e = ibv_dealloc_mw(mws[i]);
		mws[i] = NULL;
	} else if (!strcmp(what, "srq") && srqs[i]) {
		e = ibv_destroy_srq(srqs[i]);
		srqs[i] = NULL;
	}
	errno = e;
	if (e) fail("destroy");
	else ok();
}

static void multicast(int (*change)(struct ibv_qp *, const union ibv_gid *, uint16_t))
{
	union ibv_gid g;
	inet_pton(AF_INET6, text("gid", "::"), &g);
	if ((errno = change(qps[slot("i")].qp, &g, 0))) fail("multicast");
	else ok();
}

static void cmd_attach(void) { multicast(ibv_attach_mcast); }
static void cmd_detach(void) { multicast(ibv_detach_mcast); }

/* ---- states ---- */

static enum ibv_mtu path_mtu(int m)
{
	return m >= 4096 ? IBV_MTU_4096 : m >= 2048 ? IBV_MTU_2048 : m >= 1024 ? IBV_MTU_1024 : m >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

static void address(struct ibv_ah_attr *a)
{
	a->is_global = 1;
	a->port_num = 1;
	a->grh.sgid_index = num("sgid", 1);
	a->grh.hop_limit = num("hop", 64);
	a->grh.traffic_class = num("tclass", 0);
	inet_pton(AF_INET6, text("gid", "::"), &a->grh.dgid);
}

static void modify(struct ibv_qp_attr *a, int mask)
{
	if ((errno = ibv_modify_qp(qps[slot("i")].qp, a, mask | IBV_QP_STATE))) fail("modify_qp");
	else ok();
}

static void cmd_init(void)
{
	enum ibv_qp_type t = qps[slot("i")].type;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = num("qkey", 0x11111111) };
	int rights = IBV_ACCESS_REMOTE_WRITE | (t == IBV_QPT_RC ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
	a.qp_access_flags = num("access", rights);
	modify(&a, IBV_QP_PKEY_INDEX | IBV_QP_PORT | (t == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static void cmd_rtr(void)
{
	enum ibv_qp_type t = qps[slot("i")].type;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = path_mtu(num("mtu", 1024)), .dest_qp_num = num("dqpn", 0),
		.rq_psn = num("psn", 0), .max_dest_rd_atomic = num("rd", 16), .min_rnr_timer = num("rnr", 12) };
	int mask = 0;
	if (t != IBV_QPT_UD) {
		address(&a.ah_attr);
		mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (t == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	modify(&a, mask);
}

static void cmd_rts(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .sq_psn = num("psn", 0), .timeout = num("timeout", 14), .retry_cnt = num("retry", 7),
		.rnr_retry = num("rnrretry", 7), .max_rd_atomic = num("rd", 16) };
	int rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	modify(&a, IBV_QP_SQ_PSN | (qps[slot("i")].type == IBV_QPT_RC ? rc : 0));
}

static void cmd_err(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	modify(&a, 0);
}

static void cmd_reset(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	modify(&a, 0);
}

static void cmd_state(void)
{
	static const char *names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	if ((errno = ibv_query_qp(qps[slot("i")].qp, &a, IBV_QP_STATE, &ia))) fail("query_qp");
	else printf("ok state=%s\n", a.qp_state < 7 ? names[a.qp_state] : "?");
}

/* ---- work ---- */

static const struct { const char *name; enum ibv_wr_opcode op; int remote; } ops[] = {
	{ "send", IBV_WR_SEND, 0 }, { "send_imm", IBV_WR_SEND_WITH_IMM, 0 }, { "send_inv", IBV_WR_SEND_WITH_INV, 0 },
	{ "write", IBV_WR_RDMA_WRITE, 1 }, { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, 1 }, { "read", IBV_WR_RDMA_READ, 1 },
	{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP, 2 }, { "fadd", IBV_WR_ATOMIC_FETCH_AND_ADD, 2 },
};

static void cmd_post(void)
{
	static struct ibv_ah *ah;
	int i = slot("i"), kind = -1;
	const char *op = text("op", "write"), *flags = text("flags", "s");
	for (int k = 0; k < (int)(sizeof ops / sizeof *ops); k++)
		if (!strcmp(op, ops[k].name)) kind = k;
	if (kind < 0) { refuse("no such operation"); return; }
	if (qps[i].type == IBV_QPT_UD) {
		struct ibv_ah_attr a = { 0 };
		address(&a);
		if (ah) ibv_destroy_ah(ah);
		if (!(ah = ibv_create_ah(pd, &a))) { fail("create_ah"); return; }
	}
	uint64_t n = num("n", 1), len = num("len", 0), rva = num("rva", 0);
	struct ibv_mr *mr = mrs[slot("mr")];
	for (uint64_t k = 0; k < n; k++) {
		struct ibv_sge sge = { (uintptr_t)at("mr") + k * num("step", 0), len, mr ? mr->lkey : 0 };
		struct ibv_send_wr wr = { .wr_id = num("id", 0) + k, .sg_list = &sge, .num_sge = len ? 1 : 0, .opcode = ops[kind].op }, *bad;
		wr.send_flags = (strchr(flags, 's') ? IBV_SEND_SIGNALED : 0) | (strchr(flags, 'f') ? IBV_SEND_FENCE : 0) |
			(strchr(flags, 'o') ? IBV_SEND_SOLICITED : 0) | (strchr(flags, 'i') ? IBV_SEND_INLINE : 0);
		if (ops[kind].op == IBV_WR_SEND_WITH_INV) wr.invalidate_rkey = num("inv", 0);
		else wr.imm_data = htonl(num("imm", 0) + k);
		if (ops[kind].remote == 1) {
			wr.wr.rdma.remote_addr = rva + k * num("rstep", 0);
			wr.wr.rdma.rkey = num("rkey", 0);
		} else if (ops[kind].remote == 2) {
			wr.wr.atomic.remote_addr = rva + k * num("rstep", 0);
			wr.wr.atomic.rkey = num("rkey", 0);
			wr.wr.atomic.compare_add = ops[kind].op == IBV_WR_ATOMIC_CMP_AND_SWP ? num("cmp", 0) + k : num("swap", 1);
			wr.wr.atomic.swap = num("swap", 0) + k;
		} else if (qps[i].type == IBV_QPT_UD) {
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = num("dqpn", 0);
			wr.wr.ud.remote_qkey = num("qkey", 0x11111111);
		}
		if ((errno = ibv_post_send(qps[i].qp, &wr, &bad))) { fail("post_send"); return; }
	}
	ok();
}

#ifdef WITH_FLUSH
static struct ibv_qp_ex *begin(void)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qps[slot("i")].qp);
	ibv_wr_start(q);
	q->wr_id = num("id", 0);
	q->wr_flags = IBV_SEND_SIGNALED;
	return q;
}

static void finish(struct ibv_qp_ex *q)
{
	if ((errno = ibv_wr_complete(q))) fail("wr_complete");
	else ok();
}

static void cmd_flush(void)
{
	struct ibv_qp_ex *q = begin();
	ibv_wr_flush(q, num("rkey", 0), num("rva", 0), num("len", 0), num("place", IBV_FLUSH_GLOBAL), num("level", IBV_FLUSH_RANGE));
	finish(q);
}

static void cmd_awrite(void)
{
	struct ibv_qp_ex *q = begin();
	ibv_wr_atomic_write(q, num("rkey", 0), num("rva", 0), at("mr"));
	finish(q);
}
#else
static void cmd_flush(void) { refuse("this libibverbs has no FLUSH"); }
static void cmd_awrite(void) { refuse("this libibverbs has no ATOMIC_WRITE"); }
#endif

static void cmd_recv(void)
{
	struct ibv_mr *mr = mrs[slot("mr")];
	for (uint64_t k = 0; k < num("n", 1); k++) {
		struct ibv_sge sge = { (uintptr_t)at("mr") + k * num("step", 0), num("len", 0), mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = num("id", 0) + k, .sg_list = &sge, .num_sge = 1 }, *bad;
		errno = text("srq", NULL) ? ibv_post_srq_recv(srqs[slot("srq")], &wr, &bad) : ibv_post_recv(qps[slot("i")].qp, &wr, &bad);
		if (errno) { fail("post_recv"); return; }
	}
	ok();
}

static void cmd_poll(void)
{
	int i = slot("i");
	struct ibv_cq *cq = *text("cq", "s") == 'r' ? qps[i].rcq : qps[i].scq;
	uint64_t got = 0, want = num("n", 1);
	int64_t end = now() + 1000 * (int64_t)num("ms", 0);
	while (got < want) {
		struct ibv_wc wc;
		int k = ibv_poll_cq(cq, 1, &wc);
		if (k < 0) { refuse("poll_cq"); return; }
		if (k == 0) {
			if (now() > end) break;
			usleep(500);
			continue;
		}
		got++;
		/* librxe passes on the kernel's flags: "with invalidate" is libibverbs' IP_CSUM_OK. */
		int inv = wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK);
		/* After an error only these first three fields are valid. */
		if (wc.status) printf("wc id=%llu status=%d text=%s\n", (unsigned long long)wc.wr_id, wc.status, ibv_wc_status_str(wc.status));
		else printf("wc id=%llu status=0 op=%d len=%u flags=%u imm=%u src=%u\n", (unsigned long long)wc.wr_id, wc.opcode,
			wc.byte_len, wc.wc_flags, inv ? wc.invalidated_rkey : ntohl(wc.imm_data), wc.src_qp);
	}
	printf("ok n=%llu\n", (unsigned long long)got);
}

/* ---- memory ---- */

static void blocks(int check)
{
	uint64_t len = num("len", 0), step = num("step", len), seed = num("seed", 0);
	char *base = at("mr");
	for (uint64_t k = 0; k < num("n", 1); k++)
		for (uint64_t i = 0; i < len; i++) {
			uint8_t want = pattern(seed + k, i), *p = (uint8_t *)base + k * step + i;
			if (!check) *p = want;
			else if (*p != want) {
				printf("err block %llu byte %llu: is 0x%02x, should be 0x%02x\n", (unsigned long long)k, (unsigned long long)i, *p, want);
				return;
			}
		}
	ok();
}

static void cmd_fill(void) { blocks(0); }
static void cmd_check(void) { blocks(1); }
static void cmd_peek(void) { printf("ok v=%llu\n", (unsigned long long)*(volatile uint64_t *)at("mr")); }
static void cmd_poke(void) { *(volatile uint64_t *)at("mr") = num("v", 0); ok(); }

static const struct command commands[] = {
	{ "open", cmd_open }, { "mr", cmd_mr }, { "mw", cmd_mw }, { "srq", cmd_srq }, { "qp", cmd_qp }, { "free", cmd_free },
	{ "init", cmd_init }, { "rtr", cmd_rtr }, { "rts", cmd_rts }, { "err", cmd_err }, { "reset", cmd_reset }, { "state", cmd_state },
	{ "linv", cmd_linv }, { "flush", cmd_flush }, { "awrite", cmd_awrite },
	{ "attach", cmd_attach }, { "detach", cmd_detach },
	{ "post", cmd_post }, { "recv", cmd_recv }, { "poll", cmd_poll },
	{ "fill", cmd_fill }, { "check", cmd_check }, { "peek", cmd_peek }, { "poke", cmd_poke },
};

int main(void) { return CONVERSE(commands); }
