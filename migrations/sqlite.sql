CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE code (
	hash VARCHAR(80) NOT NULL, 
	blob BLOB, 
	space_blob BLOB, 
	parts_blob BLOB, 
	python VARCHAR(40) NOT NULL, 
	packages TEXT NOT NULL, 
	sys_path TEXT NOT NULL, 
	working_dir TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_code PRIMARY KEY (hash)
);

CREATE TABLE decision (
	experiment_id INTEGER NOT NULL, 
	event_seq INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	trial_number INTEGER, 
	reason TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	payload TEXT NOT NULL, 
	CONSTRAINT pk_decision PRIMARY KEY (experiment_id, event_seq)
)
 WITHOUT ROWID

;

CREATE INDEX ix_decision_trial ON decision (experiment_id, trial_number);

CREATE TABLE event (
	experiment_id INTEGER NOT NULL, 
	event_seq INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	trial_number INTEGER, 
	segment_id INTEGER, 
	report_no INTEGER, 
	step INTEGER, 
	payload TEXT, 
	CONSTRAINT pk_event PRIMARY KEY (experiment_id, event_seq)
)
 WITHOUT ROWID

;

CREATE TABLE metric_point (
	segment_id INTEGER NOT NULL, 
	key_id INTEGER NOT NULL, 
	report_no INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	value FLOAT, 
	kind SMALLINT NOT NULL, user_step BIGINT, 
	CONSTRAINT pk_metric_point PRIMARY KEY (segment_id, key_id, report_no)
)
 WITHOUT ROWID

;

CREATE TABLE rank_usage (
	segment_id INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	sample_no INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	cpu_s FLOAT NOT NULL, 
	rss_bytes BIGINT NOT NULL, 
	gpu_bytes BIGINT, 
	gpu_reserved_bytes BIGINT, 
	gpu_percent FLOAT, 
	CONSTRAINT pk_rank_usage PRIMARY KEY (segment_id, rank, sample_no)
)
 WITHOUT ROWID

;

CREATE TABLE metric_bucket (
	segment_id INTEGER NOT NULL, 
	key_id INTEGER NOT NULL, 
	level SMALLINT NOT NULL, 
	chunk INTEGER NOT NULL, 
	last_no INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_metric_bucket PRIMARY KEY (segment_id, key_id, level, chunk)
)
 WITHOUT ROWID

;

CREATE TABLE best_point (
	key_id INTEGER NOT NULL, 
	event_seq INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	value FLOAT NOT NULL, 
	CONSTRAINT pk_best_point PRIMARY KEY (key_id, event_seq)
)
 WITHOUT ROWID

;

CREATE TABLE log_chunk (
	segment_id INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	start BIGINT NOT NULL, 
	size INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_log_chunk PRIMARY KEY (segment_id, rank, start, size)
)
 WITHOUT ROWID

;

CREATE TABLE webhook_cursor (
	experiment_id INTEGER NOT NULL, 
	event_seq INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, 
	CONSTRAINT pk_webhook_cursor PRIMARY KEY (experiment_id)
);

CREATE TABLE "experiment" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	spec TEXT NOT NULL, 
	spec_version INTEGER NOT NULL, 
	seed BIGINT NOT NULL, 
	source VARCHAR(16) NOT NULL, 
	idempotency_key TEXT, 
	code_hash VARCHAR(80), 
	driver_epoch INTEGER NOT NULL, 
	driver_owner TEXT, 
	lease_until FLOAT, 
	last_event_seq INTEGER NOT NULL, 
	best TEXT, 
	counts TEXT, 
	reason TEXT NOT NULL, 
	error TEXT, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, project VARCHAR(100) DEFAULT 'default' NOT NULL, archived_at FLOAT, changes TEXT, revision INTEGER DEFAULT '0' NOT NULL, tags TEXT, gpu_hours FLOAT DEFAULT '0' NOT NULL, cpu_hours FLOAT DEFAULT '0' NOT NULL, gpu_hours_saved FLOAT DEFAULT '0' NOT NULL, thinned_at FLOAT, thinned_upto INTEGER, pauses TEXT, paused_s FLOAT DEFAULT '0' NOT NULL, budget_spent FLOAT, 
	CONSTRAINT fk_experiment_code_hash FOREIGN KEY(code_hash) REFERENCES code (hash), 
	CONSTRAINT uq_experiment_idempotency_key UNIQUE (idempotency_key), 
	CONSTRAINT uq_experiment_public_id UNIQUE (public_id)
);

CREATE INDEX ix_experiment_name ON experiment (name);

CREATE INDEX ix_experiment_state ON experiment (state);

CREATE INDEX ix_experiment_project_id ON experiment (project, id);

CREATE TABLE "command" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	experiment_id INTEGER NOT NULL, 
	command VARCHAR(16) NOT NULL, 
	trial_number INTEGER, 
	reason TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	done_at FLOAT, payload TEXT, idempotency_key TEXT, request VARCHAR(64), 
	CONSTRAINT fk_command_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiment (id)
);

CREATE INDEX ix_command_open ON command (experiment_id, state);

CREATE TABLE "metric_key" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	experiment_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	CONSTRAINT fk_metric_key_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiment (id), 
	CONSTRAINT uq_metric_key_experiment_id_name UNIQUE (experiment_id, name)
);

CREATE TABLE "trial" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	params TEXT NOT NULL, 
	searcher TEXT NOT NULL, 
	tags TEXT NOT NULL, 
	iteration INTEGER NOT NULL, 
	last TEXT NOT NULL, 
	last_value FLOAT, 
	best_value FLOAT, 
	best_iteration INTEGER, 
	reports INTEGER NOT NULL, 
	running_s FLOAT NOT NULL, 
	failures INTEGER NOT NULL, 
	system_failures INTEGER NOT NULL, 
	failure TEXT, 
	reason TEXT NOT NULL, 
	waiting TEXT, 
	checkpoint TEXT, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, best_params TEXT, feasible BOOLEAN, space_revision INTEGER DEFAULT '0' NOT NULL, repeat_of INTEGER, 
	CONSTRAINT fk_trial_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiment (id), 
	CONSTRAINT uq_trial_experiment_id_number UNIQUE (experiment_id, number), 
	CONSTRAINT uq_trial_public_id UNIQUE (public_id)
);

CREATE INDEX ix_trial_state ON trial (experiment_id, state, number);

CREATE TABLE "segment" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	trial_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	cause VARCHAR(16) NOT NULL, 
	start_step INTEGER NOT NULL, 
	config TEXT NOT NULL, 
	source_checkpoint VARCHAR(64), 
	placement TEXT, 
	warm BOOLEAN, 
	startup_s FLOAT, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, 
	outcome VARCHAR(16), held_s FLOAT, workers INTEGER, 
	CONSTRAINT fk_segment_trial_id FOREIGN KEY(trial_id) REFERENCES trial (id), 
	CONSTRAINT uq_segment_public_id UNIQUE (public_id), 
	CONSTRAINT uq_segment_trial_id_ordinal UNIQUE (trial_id, ordinal)
);

CREATE TABLE "checkpoint" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	segment_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	uri TEXT NOT NULL, 
	bytes BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, node VARCHAR(64), pinned BOOLEAN DEFAULT 0 NOT NULL, taken_at FLOAT, took_s FLOAT, 
	CONSTRAINT fk_checkpoint_segment_id FOREIGN KEY(segment_id) REFERENCES segment (id), 
	CONSTRAINT uq_checkpoint_public_id UNIQUE (public_id)
);

CREATE INDEX ix_checkpoint_segment_id ON checkpoint (segment_id);

CREATE TABLE "token" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, 
	used_at FLOAT, project VARCHAR(100), 
	CONSTRAINT uq_token_public_id UNIQUE (public_id), 
	CONSTRAINT uq_token_hash UNIQUE (hash)
);

CREATE TABLE "audit" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	time FLOAT NOT NULL, 
	actor TEXT NOT NULL, 
	token_id VARCHAR(64), 
	method VARCHAR(16) NOT NULL, 
	path TEXT NOT NULL, 
	status INTEGER NOT NULL, 
	address TEXT NOT NULL, project VARCHAR(100)
, created VARCHAR(64));

CREATE TABLE "session" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	hash VARCHAR(64) NOT NULL, 
	token_id INTEGER, 
	name TEXT NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	project VARCHAR(100), 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	CONSTRAINT uq_session_hash UNIQUE (hash), 
	CONSTRAINT fk_session_token_id FOREIGN KEY(token_id) REFERENCES token (id)
);

CREATE TABLE "webhook" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	url TEXT NOT NULL, 
	events TEXT NOT NULL, 
	project VARCHAR(100), 
	experiment VARCHAR(64), 
	format VARCHAR(16) NOT NULL, 
	threshold FLOAT, 
	secret TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT uq_webhook_public_id UNIQUE (public_id)
);

CREATE TABLE "webhook_delivery" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	public_id VARCHAR(64) NOT NULL, 
	webhook_id INTEGER NOT NULL, 
	occurrence VARCHAR(200) NOT NULL, 
	event VARCHAR(32) NOT NULL, 
	experiment VARCHAR(64) NOT NULL, 
	data TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at FLOAT NOT NULL, 
	last_status INTEGER, 
	last_error TEXT, 
	created_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	CONSTRAINT uq_webhook_delivery_public_id UNIQUE (public_id), 
	CONSTRAINT uq_webhook_delivery_webhook_id_occurrence UNIQUE (webhook_id, occurrence)
);

CREATE INDEX ix_webhook_delivery_due ON webhook_delivery (state, next_at);

CREATE TABLE bundle (
	sha256 VARCHAR(64) NOT NULL, 
	used_at FLOAT NOT NULL, deleting_since FLOAT, 
	CONSTRAINT pk_bundle PRIMARY KEY (sha256)
);

CREATE TABLE package (
	uri TEXT NOT NULL, 
	used_at FLOAT NOT NULL, 
	deleting_since FLOAT, 
	CONSTRAINT pk_package PRIMARY KEY (uri)
);

CREATE INDEX ix_event_kind ON event (experiment_id, kind, event_seq, trial_number) WHERE kind <> 'reported';

CREATE TABLE project (
	name VARCHAR(100) NOT NULL, 
	warm_start VARCHAR(16) NOT NULL, 
	changed_at FLOAT NOT NULL, 
	CONSTRAINT pk_project PRIMARY KEY (name)
);

INSERT INTO alembic_version VALUES ('0033')
