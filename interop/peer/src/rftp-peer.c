/* rftp-peer: a peer of transport/rftp, on libibverbs and librdmacm only. It implements docs/rftp.md in
 * proactive mode, with one session at a time in each direction.
 *
 * conversation.h describes how it is controlled. blocks and size are those of its pool.
 *
 *   listen port blocks size             -> ok
 *   accept qps ms                       -> ok qps size
 *   dial   addr port blocks size qps ms -> ok qps size
 *          rejected: err with the listening side's limits
 *   put    file ms                      -> ok blocks bytes
 *          sends a file as one session
 *   get    file ms                      -> ok blocks bytes
 *          receives one session and writes its blocks to a file
 *   close  ms                           -> ok
 *          says that no more sessions follow, waits for the same from the peer, and disconnects
 */
#include <endian.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conversation.h"
#define MAGIC "GXFT"
#include "rdma_cm.h"

enum { PRIVATE = 24, HEADER = 64, CONTROL = 4096, DEPTH = 64, HEAD = 16, GRANT = 16, MAX_QPS = 8, MAX_BLOCKS = 256, MIN_SIZE = 64 };
enum { CONTROL_QP, DATA_QP }; /* kinds of requests */
enum { PROACTIVE = 0, VERSION = 1, SILENCE = 20000000, LAST = 2000000, MAX_ID = 1 << 16 };
enum { ACCEPT = 1, OPEN, ASK, GRANTS, FIN, CONSUMED, END, REFUSE, DONE, MESSAGE, ACK, QP_DOWN, QP_STATE, FINISH, BYE };
enum { CONTROL_IN, CONTROL_OUT, BLOCK_IN, BLOCK_OUT, READY }; /* upper half of a wr_id */

static struct rdma_cm_id *ids[1 + MAX_QPS]; /* the control QP, then the data QPs */
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *control_mr, *in_mr, *out_mr;
static uint8_t *control, *in, *out; /* control: DEPTH messages to send, then as many to receive */
static uint32_t qps, block;         /* agreed: data QPs, block size */
static uint8_t number[8];           /* of the connection */
static uint32_t pool;               /* blocks of each pool, as set by the last listen or dial */
static char broken[200];            /* why the connection has ended */

static struct { uint32_t sent, completed, acked, received, reported; int64_t sent_at, heard_at; int finished, bye, said; } ch;

/* The receiving half. Block i has the state granted or is free: get consumes blocks at once. */
static struct {
	uint16_t grants[MAX_BLOCKS]; /* how often it was granted */
	uint8_t granted[MAX_BLOCKS];
	uint8_t seen[2 * MAX_BLOCKS]; /* sequence numbers from base on that have arrived */
	uint32_t free, total_grants, session, base, received, end, opened, ended, done_due, done, accept_sent;
	uint64_t bytes;
	int fd;
} snk;

struct grant { uint32_t id, key; uint64_t addr; };

/* The sending half. */
static struct {
	struct grant *credits; /* a ring of peer_blocks */
	uint32_t peer_blocks, head, tail, grants;
	uint8_t busy[MAX_BLOCKS]; /* WRITEs that have not completed, by block of this side */
	uint32_t session, next, running, open_due, end_due, ended, done;
	uint64_t at, len;
	int fd;
} src;

static void put16(uint8_t *p, uint16_t v) { v = htobe16(v), memcpy(p, &v, 2); }
static void put32(uint8_t *p, uint32_t v) { v = htobe32(v), memcpy(p, &v, 4); }
static void put64(uint8_t *p, uint64_t v) { v = htobe64(v), memcpy(p, &v, 8); }
static uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return be16toh(v); }
static uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
static uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }

static uint32_t stride(void) { return (HEADER + block + 63) / 64 * 64; }

/* end ends the connection. The first reason counts. */
static void __attribute__((format(printf, 1, 2))) end(const char *format, ...)
{
	va_list args;
	if (*broken) return;
	va_start(args, format);
	vsnprintf(broken, sizeof broken, format, args);
	va_end(args);
}

/* ---- queue pairs ---- */

static void receive_control(uint32_t i)
{
	struct ibv_sge s = {(uintptr_t)control + (DEPTH + i) * CONTROL, CONTROL, control_mr->lkey};
	struct ibv_recv_wr *bad, w = {.wr_id = (uint64_t)CONTROL_IN << 32 | i, .sg_list = &s, .num_sge = 1};
	if ((errno = ibv_post_recv(ids[0]->qp, &w, &bad))) end("post a receive: %s", strerror(errno));
}

/* receive_block posts a receive for an immediate on a data QP. */
static void receive_block(uint32_t qp)
{
	struct ibv_recv_wr *bad, w = {.wr_id = (uint64_t)BLOCK_IN << 32 | qp};
	if ((errno = ibv_post_recv(ids[1 + qp]->qp, &w, &bad))) end("post a receive: %s", strerror(errno));
}

/* create_qp creates the QP of ids[i] and posts its receives. */
static int create_qp(uint32_t i)
{
	struct ibv_qp_init_attr a = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {.max_send_sge = 1, .max_recv_sge = 1}};
	if (!pd && (!(pd = ibv_alloc_pd(ids[0]->verbs)) || !(cq = ibv_create_cq(ids[0]->verbs, 2 * DEPTH + (1 + MAX_QPS) * MAX_BLOCKS, NULL, NULL, 0))))
		return fail("pd, cq");
	a.send_cq = a.recv_cq = cq;
	a.cap.max_recv_wr = i ? pool : DEPTH;
	a.cap.max_send_wr = a.cap.max_recv_wr + 1; /* ready */
	if (rdma_create_qp(ids[i], pd, &a)) return fail("create a QP");
	if (!i && (posix_memalign((void **)&control, 4096, 2 * DEPTH * CONTROL) || !(control_mr = ibv_reg_mr(pd, control, 2 * DEPTH * CONTROL, IBV_ACCESS_LOCAL_WRITE))))
		return fail("memory of the control QP");
	for (uint32_t k = 0; k < (i ? pool : DEPTH); k++) i ? receive_block(i - 1) : receive_control(k);
	return *broken ? (printf("err %s\n", broken), -1) : 0;
}

/* create_pools allocates blocks when their size is known. */
static int create_pools(void)
{
	size_t n = (size_t)pool * stride();
	if (posix_memalign((void **)&in, 4096, n) || posix_memalign((void **)&out, 4096, n)) return fail("memory");
	memset(out, 0, n);
	in_mr = ibv_reg_mr(pd, in, n, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	out_mr = ibv_reg_mr(pd, out, n, IBV_ACCESS_LOCAL_WRITE);
	snk.free = pool;
	ch.sent_at = ch.heard_at = now();
	return in_mr && out_mr ? 0 : fail("register");
}

static void destroy(void)
{
	for (int i = 0; i <= MAX_QPS; i++)
		if (ids[i] && ids[i]->qp) rdma_destroy_qp(ids[i]);
	if (control_mr) ibv_dereg_mr(control_mr);
	if (in_mr) ibv_dereg_mr(in_mr);
	if (out_mr) ibv_dereg_mr(out_mr);
	if (cq) ibv_destroy_cq(cq);
	if (pd) ibv_dealloc_pd(pd);
	for (int i = 0; i <= MAX_QPS; i++)
		if (ids[i]) rdma_destroy_id(ids[i]);
	free(control), free(in), free(out), free(src.credits);
	memset(ids, 0, sizeof ids), memset(&ch, 0, sizeof ch), memset(&snk, 0, sizeof snk), memset(&src, 0, sizeof src);
	pd = NULL, cq = NULL, control_mr = in_mr = out_mr = NULL, control = in = out = NULL;
	qps = 0, *broken = 0;
}

/* ---- connecting ---- */

static void hello(uint8_t *b, int kind)
{
	memset(b, 0, PRIVATE);
	memcpy(b, MAGIC, 4);
	b[4] = VERSION, b[5] = kind;
}

/* limits describes this side in a request or rejection. */
static void limits(uint8_t *b)
{
	hello(b, CONTROL_QP);
	b[6] = PROACTIVE, b[7] = num("qps", 1), b[8] = 1;
	put32(b + 12, size), put32(b + 16, MIN_SIZE);
}

static int is_hello(const struct rdma_cm_event *e, int kind)
{
	const uint8_t *b = e->param.conn.private_data;
	return e->param.conn.private_data_len >= PRIVATE && !memcmp(b, MAGIC, 4) && b[4] == VERSION && b[5] == kind;
}

static struct rdma_conn_param parameters(const uint8_t *private)
{
	return (struct rdma_conn_param){.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7, .private_data = private, .private_data_len = PRIVATE};
}

/* on_control answers the request of a control QP with what both sides use. */
static int on_control(struct rdma_cm_event *e)
{
	const uint8_t *b = e->param.conn.private_data;
	uint8_t reply[PRIVATE];
	limits(reply);
	uint32_t most = num("qps", 1), n = b[7] < most ? b[7] : most, s = get32(b + 12) < size ? get32(b + 12) : size;
	if (b[6] != PROACTIVE || n < 1 || n < b[8] || s < MIN_SIZE || s < get32(b + 16)) {
		rdma_reject(e->id, reply, PRIVATE);
		printf("err refused: the peer has qps=%u to %u size=%u to %u\n", b[8], b[7], get32(b + 16), get32(b + 12));
		return -1;
	}
	ids[0] = e->id, qps = n, block = s;
	if (getrandom(number, sizeof number, GRND_INSECURE) != sizeof number) /* a new guest has no entropy */ return fail("random number");
	hello(reply, CONTROL_QP);
	reply[6] = PROACTIVE, reply[7] = qps;
	put32(reply + 12, block), memcpy(reply + 16, number, sizeof number);
	struct rdma_conn_param p = parameters(reply);
	if (create_qp(0) || create_pools()) return -1;
	return rdma_accept(ids[0], &p) ? fail("accept the control QP") : 0;
}

/* same_peer compares the addresses of two connections. */
static int same_peer(struct rdma_cm_id *a, struct rdma_cm_id *b)
{
	struct sockaddr *x = rdma_get_peer_addr(a), *y = rdma_get_peer_addr(b);
	if (x->sa_family != y->sa_family) return 0;
	if (x->sa_family == AF_INET) return !memcmp(&((struct sockaddr_in *)x)->sin_addr, &((struct sockaddr_in *)y)->sin_addr, 4);
	return !memcmp(&((struct sockaddr_in6 *)x)->sin6_addr, &((struct sockaddr_in6 *)y)->sin6_addr, 16);
}

static int on_data(struct rdma_cm_event *e)
{
	const uint8_t *b = e->param.conn.private_data;
	uint8_t reply[PRIVATE];
	hello(reply, DATA_QP);
	uint32_t i = 1 + b[7];
	if (!ids[0] || i > qps || ids[i] || memcmp(b + 16, number, sizeof number) || !same_peer(ids[0], e->id)) {
		rdma_reject(e->id, NULL, 0);
		printf("err a data QP of another connection\n");
		return -1;
	}
	ids[i] = e->id;
	struct rdma_conn_param p = parameters(reply);
	if (create_qp(i)) return -1;
	return rdma_accept(ids[i], &p) ? fail("accept a data QP") : 0;
}

static int accept_all(int64_t until)
{
	for (uint32_t connected = 0; !ids[0] || connected < 1 + qps;) {
		struct rdma_cm_event *e = NULL;
		int r = event(RDMA_CM_EVENT_CONNECT_REQUEST, until, &e);
		if (!e) return fail("wait for a connection");
		if (!r && is_hello(e, CONTROL_QP) && !ids[0]) r = on_control(e);
		else if (!r && is_hello(e, DATA_QP)) r = on_data(e);
		else if (!r) r = rdma_reject(e->id, NULL, 0);
		else if (e->event == RDMA_CM_EVENT_ESTABLISHED) r = 0, connected++;
		else printf("err event %s\n", rdma_event_str(e->event));
		rdma_ack_cm_event(e);
		if (r) return -1;
	}
	return 0;
}

/* ready sends an empty WRITE, which RC repeats: it tells the peer that the QP is connected even if the
 * RTU gets lost. rdma_cm repeats the RTU only for a repeated REP, of which gorxe sends one. */
static int ready(uint32_t i)
{
	struct ibv_send_wr *bad, w = {.wr_id = (uint64_t)READY << 32, .opcode = IBV_WR_RDMA_WRITE};
	return (errno = ibv_post_send(ids[i]->qp, &w, &bad)) ? fail("post a WRITE") : 0;
}

/* dial connects ids[i] and checks the reply. */
static int dial(uint32_t i, const uint8_t *request, int64_t until)
{
	struct rdma_conn_param p = parameters(request);
	struct rdma_cm_event *e = NULL;
	if (resolve(until)) return -1;
	ids[i] = id;
	if (create_qp(i)) return -1;
	if (rdma_connect(ids[i], &p)) return fail("connect");
	int r = event(RDMA_CM_EVENT_ESTABLISHED, until, &e);
	const uint8_t *b = e ? e->param.conn.private_data : NULL;
	if (r && e && e->event == RDMA_CM_EVENT_REJECTED && is_hello(e, CONTROL_QP))
		printf("err refused: the peer has qps=%u to %u size=%u to %u\n", b[8], b[7], get32(b + 16), get32(b + 12));
	else if (r)
		fail("connect");
	else if (!is_hello(e, i ? DATA_QP : CONTROL_QP))
		r = -1, printf("err the reply is of another protocol\n");
	else if (!i)
		qps = b[7], block = get32(b + 12), memcpy(number, b + 16, sizeof number);
	if (e) rdma_ack_cm_event(e);
	if (!r && !i && (!qps || qps > num("qps", 1) || block < MIN_SIZE || block > size)) r = -1, printf("err the reply has qps=%u size=%u\n", qps, block);
	return r || ready(i) ? -1 : 0;
}

/* ---- control messages ---- */

/* space tells whether a control message can be sent. Only an ACK or BYE may be the last one. */
static int space(int last)
{
	return ch.sent - ch.completed < DEPTH && ch.sent - ch.acked < DEPTH - !last;
}

/* body returns the memory for the body of the next control message. */
static uint8_t *body(void) { return control + ch.sent % DEPTH * CONTROL + HEAD; }

/* tell sends the next control message, whose body has len bytes. */
static void tell(int type, uint32_t len)
{
	uint8_t *b = body() - HEAD;
	memset(b, 0, HEAD);
	put16(b, type), b[2] = VERSION, put32(b + 4, len), put32(b + 8, ch.received);
	struct ibv_sge s = {(uintptr_t)b, HEAD + len, control_mr->lkey};
	struct ibv_send_wr *bad, w = {.wr_id = (uint64_t)CONTROL_OUT << 32, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND};
	ch.reported = ch.received, ch.sent++, ch.sent_at = now();
	if ((errno = ibv_post_send(ids[0]->qp, &w, &bad))) end("post a control message: %s", strerror(errno));
}

/* grant grants all free blocks that fit into a message, from b on. It returns the number of bytes. */
static uint32_t grant(uint8_t *b, uint32_t max)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < pool && n + GRANT <= max; i++) {
		if (snk.granted[i]) continue;
		snk.granted[i] = 1, snk.free--, snk.total_grants++;
		put32(b + n, (uint32_t)++snk.grants[i] << 16 | i);
		put32(b + n + 4, in_mr->rkey), put64(b + n + 8, (uintptr_t)in + (uint64_t)i * stride());
		n += GRANT;
	}
	return n;
}

/* grants_due tells whether to grant free blocks now: several at a time while the peer has enough. */
static int grants_due(void) { return snk.free && (snk.free >= 8 || 2 * snk.free > pool); }

/* speak sends the control messages that are due. */
static void speak(void)
{
	while (space(0) && !*broken) {
		uint8_t *b = body();
		if (!snk.accept_sent) {
			memset(b, 0, 16);
			put32(b, block), put32(b + 4, pool), put32(b + 8, 1), b[12] = PROACTIVE;
			tell(ACCEPT, 16 + grant(b + 16, CONTROL - HEAD - 16));
			snk.accept_sent = 1;
		} else if (grants_due()) {
			uint32_t n = grant(b + 8, CONTROL - HEAD - 8);
			put32(b, snk.total_grants), put32(b + 4, 0);
			tell(GRANTS, 8 + n);
		} else if (snk.done_due) {
			put32(b, snk.session);
			tell(DONE, 4);
			snk.done_due = 0, snk.done = 1;
		} else if (src.open_due && src.credits) {
			put32(b, src.session);
			tell(OPEN, 4);
			src.open_due = 0;
		} else if (src.end_due) {
			put32(b, src.session), put32(b + 4, src.next), put32(b + 8, 0);
			tell(END, 12);
			src.end_due = 0, src.ended = 1;
		} else {
			break;
		}
	}
	if (!*broken && (ch.received - ch.reported >= DEPTH / 2 || now() - ch.sent_at > SILENCE / 4) && space(1)) tell(ACK, 0);
}

/* add_credits takes n grants. */
static void add_credits(const uint8_t *b, uint32_t n)
{
	for (; n; n--, b += GRANT) {
		struct grant g = {get32(b), get32(b + 4), get64(b + 8)};
		if (g.id % MAX_ID >= src.peer_blocks || src.head - src.tail >= src.peer_blocks) {
			end("a grant of block %u of %u, with %u credits", g.id % MAX_ID, src.peer_blocks, src.head - src.tail);
			return;
		}
		src.credits[src.head++ % src.peer_blocks] = g;
		src.grants++;
	}
}

static void on_accept(const uint8_t *b, uint32_t len)
{
	uint32_t n = (len - 16) / GRANT, blocks = get32(b + 4);
	if (src.credits || len < 16 || get32(b) != block || !blocks || blocks > MAX_ID || b[12] != PROACTIVE) {
		end("a wrong Accept");
		return;
	}
	src.peer_blocks = blocks;
	if (!(src.credits = calloc(blocks, sizeof *src.credits))) end("no memory");
	else add_credits(b + 16, n);
}

static void on_grants(const uint8_t *b, uint32_t len)
{
	uint32_t n = (len - 8) / GRANT;
	if (!src.credits || len < 8 + GRANT || get32(b) != src.grants + n) end("a wrong Grant");
	else add_credits(b + 8, n);
}

/* on_end handles the end of a session, before or after its last block. */
static void on_end(const uint8_t *b, uint32_t len)
{
	if (len < 12 || !snk.opened || snk.ended || get32(b) != snk.session || get32(b + 4) < snk.received) end("a wrong End");
	else if (get32(b + 8)) end("the peer aborts the session: %.*s", (int)len - 12, b + 12);
	else snk.ended = 1, snk.end = get32(b + 4), snk.done_due = snk.received == snk.end;
}

static void on_control_message(const uint8_t *b, uint32_t len)
{
	if (len < HEAD || len > CONTROL || b[2] != VERSION || get32(b + 4) != len - HEAD) {
		end("a control message of %u bytes", len);
		return;
	}
	uint32_t acked = get32(b + 8);
	if (acked - ch.acked > ch.sent - ch.acked || ch.received + 1 - ch.reported > DEPTH) {
		end("it has processed %u messages of %u, and %u have arrived since %u", acked, ch.sent, ch.received + 1, ch.reported);
		return;
	}
	ch.acked = acked, ch.heard_at = now();
	int type = get16(b);
	b += HEAD, len -= HEAD;
	switch (type) {
	case ACCEPT: on_accept(b, len); break;
	case GRANTS: on_grants(b, len); break;
	case OPEN:
		if (len < 4 || snk.opened || get32(b) != snk.session) end("a wrong Open");
		else snk.opened = 1;
		break;
	case END: on_end(b, len); break;
	case DONE:
		if (len != 4 || !src.ended || get32(b) != src.session) end("a wrong Done");
		else src.done = 1;
		break;
	case REFUSE: end("the peer refuses the session: %.*s", len < 4 ? 0 : (int)len - 4, b + 4); break;
	case CONSUMED:
	case ACK: break;
	case FINISH: ch.finished = 1; break;
	case BYE:
		ch.bye = 1;
		end(len ? "the peer ends the connection: %.*s" : "the peer has closed the connection", (int)len, b);
		break;
	default: end("a control message of type %d", type);
	}
}

/* ---- blocks ---- */

/* on_block handles a block that has arrived. Only the copy of its header is looked at. */
static void on_block(uint32_t id, uint32_t bytes)
{
	uint8_t h[HEADER];
	uint32_t i = id % MAX_ID;
	if (i >= pool || !snk.granted[i] || id >> 16 != snk.grants[i]) {
		end("block %u of grant %u is not granted", i, id >> 16);
		return;
	}
	const uint8_t *b = in + (size_t)i * stride();
	memcpy(h, b, HEADER);
	uint32_t session = get32(h), seq = get32(h + 4) - snk.base, len = get32(h + 16);
	if (bytes != HEADER + len || session != snk.session || seq >= 2 * pool || snk.seen[(snk.base + seq) % (2 * pool)] || (snk.ended && snk.received >= snk.end)) {
		end("block %u of session %u with %u of %u bytes", get32(h + 4), session, len, bytes);
		return;
	}
	if (pwrite(snk.fd, b + HEADER, len, get64(h + 8)) != len) {
		end("write: %s", strerror(errno));
		return;
	}
	snk.seen[(snk.base + seq) % (2 * pool)] = 1;
	for (; snk.seen[snk.base % (2 * pool)]; snk.base++) snk.seen[snk.base % (2 * pool)] = 0;
	snk.granted[i] = 0, snk.free++, snk.received++, snk.bytes += len;
	snk.done_due = snk.ended && snk.received == snk.end;
	ch.heard_at = now();
}

/* write_blocks sends blocks while there are data, credits and free blocks of this side. */
static void write_blocks(void)
{
	/* A sequence number must not be 2 * peer_blocks above one that has not completed. */
	uint32_t own = pool < 2 * src.peer_blocks ? pool : 2 * src.peer_blocks;
	while (src.running && !src.open_due && src.tail != src.head && !src.busy[src.next % own] && !*broken) {
		uint32_t i = src.next % own, len = src.len - src.at < block ? src.len - src.at : block;
		uint8_t *b = out + (size_t)i * stride();
		if (src.at == src.len) {
			src.running = 0, src.end_due = 1;
			return;
		}
		if (pread(src.fd, b + HEADER, len, src.at) != len) {
			end("read: %s", strerror(errno));
			return;
		}
		struct grant g = src.credits[src.tail++ % src.peer_blocks];
		put32(b, src.session), put32(b + 4, src.next), put64(b + 8, src.at), put32(b + 16, len);
		struct ibv_sge s = {(uintptr_t)b, HEADER + len, out_mr->lkey};
		struct ibv_send_wr *bad, w = {.wr_id = (uint64_t)BLOCK_OUT << 32 | i, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
			.imm_data = htonl(g.id), .wr.rdma = {g.addr, g.key}};
		if ((errno = ibv_post_send(ids[1 + src.next % qps]->qp, &w, &bad))) end("post a block: %s", strerror(errno));
		src.busy[i] = 1, src.next++, src.at += len;
	}
}

static void complete(const struct ibv_wc *wc)
{
	static uint8_t message[CONTROL];
	uint32_t i = wc->wr_id;
	if (wc->status != IBV_WC_SUCCESS) {
		end("completion: %s", ibv_wc_status_str(wc->status));
		return;
	}
	switch (wc->wr_id >> 32) {
	case CONTROL_OUT: ch.completed++; break;
	case CONTROL_IN:
		memcpy(message, control + (DEPTH + i) * CONTROL, wc->byte_len);
		receive_control(i);
		on_control_message(message, wc->byte_len);
		ch.received++;
		break;
	case BLOCK_OUT: src.busy[i] = 0; break;
	case READY: break;
	case BLOCK_IN:
		receive_block(i);
		if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) on_block(ntohl(wc->imm_data), wc->byte_len);
		else end("a message on a data QP");
	}
}

/* turn handles one completion and sends what is due. */
static void turn(int64_t until)
{
	static int idle;
	struct ibv_wc wc;
	int n = ibv_poll_cq(cq, 1, &wc);
	if (n > 0) complete(&wc);
	else if (now() > until) end("time is over");
	else if (now() - ch.heard_at > SILENCE) end("the peer is silent");
	idle = n > 0 ? 0 : idle + 1;
	if (idle > 20) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL); /* rxe needs the processor */
	speak();
	write_blocks();
}

/* close_all says why the connection ends and disconnects. A peer that has closed its QPs acknowledges
 * nothing, and rxe would send the last message again forever. */
static void close_all(int64_t until)
{
	int left = 1 + qps;
	if (ids[0] && ch.heard_at && !ch.bye && space(1)) {
		uint32_t len = strlen(broken);
		memcpy(body(), broken, len);
		tell(BYE, len);
		struct ibv_wc wc = {0};
		for (int64_t stop = now() + LAST; ch.completed != ch.sent && left > qps && now() < stop && wc.status == IBV_WC_SUCCESS; left -= gone())
			if (ibv_poll_cq(cq, 1, &wc) > 0) ch.completed += wc.wr_id >> 32 == CONTROL_OUT;
	}
	for (uint32_t i = 0; i <= qps; i++)
		if (!ids[i] || rdma_disconnect(ids[i])) left--;
	while (left > 0) { /* a lost DREQ is sent again only as long as its ID exists */
		struct rdma_cm_event *e = NULL;
		event(RDMA_CM_EVENT_DISCONNECTED, until, &e);
		if (!e) break;
		left -= e->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(e);
	}
	destroy();
}

/* ---- commands ---- */

static int64_t deadline(void) { return now() + 1000 * (int64_t)num("ms", 120000); }

/* over ends a command that has failed, and its connection. */
static void over(int64_t until)
{
	printf("err %s\n", broken);
	close_all(until);
}

static int set_pool(void)
{
	if (!ids[0] && blocks && blocks <= MAX_BLOCKS && size >= MIN_SIZE && num("qps", 1) <= MAX_QPS) {
		pool = blocks;
		return 0;
	}
	errno = EINVAL;
	return fail("blocks, size, qps, or connected already");
}

static void do_accept(void)
{
	int64_t until = deadline();
	if (set_pool() || accept_all(until)) destroy();
	else printf("ok qps=%u size=%u\n", qps, block);
}

static void do_dial(void)
{
	int64_t until = deadline();
	uint8_t request[PRIVATE];
	blocks = num("blocks", 16), size = num("size", 65536);
	if (set_pool()) return;
	limits(request);
	int r = dial(0, request, until) || create_pools();
	for (uint32_t i = 1; !r && i <= qps; i++) {
		hello(request, DATA_QP);
		request[7] = i - 1, memcpy(request + 16, number, sizeof number);
		r = dial(i, request, until);
	}
	if (r) destroy();
	else printf("ok qps=%u size=%u\n", qps, block);
}

static void do_put(void)
{
	int64_t until = deadline();
	struct stat st;
	if (!cq || (src.fd = open(text("file", ""), O_RDONLY)) < 0 || fstat(src.fd, &st)) {
		fail("open the file, or no connection");
		return;
	}
	src.session++, src.next = src.ended = src.done = 0, src.at = 0, src.len = st.st_size;
	src.open_due = src.running = 1;
	while (!src.done && !*broken) turn(until);
	close(src.fd);
	if (src.done) printf("ok blocks=%u bytes=%lu\n", src.next, src.len);
	else over(until);
}

static void do_get(void)
{
	int64_t until = deadline();
	if (!cq || (snk.fd = open(text("file", ""), O_RDWR | O_CREAT | O_TRUNC, 0600)) < 0) {
		fail("open the file, or no connection");
		return;
	}
	snk.session++, snk.base = snk.received = snk.opened = snk.ended = snk.done = 0, snk.bytes = 0;
	memset(snk.seen, 0, sizeof snk.seen);
	while (!snk.done && !*broken) turn(until);
	close(snk.fd);
	if (snk.done) printf("ok blocks=%u bytes=%lu\n", snk.received, snk.bytes);
	else over(until);
}

static void do_close(void)
{
	int64_t until = deadline();
	if (!cq) {
		refuse("no connection");
		return;
	}
	while (!space(0) && !*broken) turn(until);
	if (!*broken) tell(FINISH, 0);
	while (!ch.finished && !*broken) turn(until);
	if (ch.finished) ok();
	else printf("err %s\n", broken);
	if (ch.finished) *broken = 0;
	close_all(until);
}

static const struct command commands[] = { { "listen", do_listen }, { "accept", do_accept }, { "dial", do_dial }, { "put", do_put }, { "get", do_get }, { "close", do_close } };

int main(void) { return CONVERSE(commands); }
