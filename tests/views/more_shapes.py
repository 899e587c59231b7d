# ruff: noqa: E501
"""More queries that views are tested with: over m(k, g, d, p, x, o, s) with dates, decimals, doubles, truths and texts,
over a and b of `shapes`, and over tables like those of TPC-DS."""

MEASURES = "k bigint, g bigint, d date, p decimal(12,2), x double, o boolean, s string"

LISTED = {
    # Aggregates.
    "exact sums of doubles": "SELECT g, sum(x) AS s, count(x) AS n FROM m GROUP BY g",
    "averages of doubles": "SELECT g, avg(x) AS s FROM m GROUP BY g",
    "sums of decimals": "SELECT g, sum(p) AS s, avg(p) AS a, min(p) AS lo, max(p) AS hi FROM m GROUP BY g",
    "spread": "SELECT g, stddev(p) AS sd, var_pop(k) AS vp, variance(k) AS vs, stddev_pop(x) AS sp FROM m GROUP BY g",
    "pairs": "SELECT g, covar_pop(k, p) AS c, covar_samp(k, p) AS cs FROM m GROUP BY g",
    "truths": "SELECT g, bool_and(o) AS a, bool_or(o) AS b, count_if(o) AS n FROM m GROUP BY g",
    "picked": "SELECT g, max_by(s, k) AS newest, min_by(k, k) AS oldest FROM m GROUP BY g",
    "sums of distinct": "SELECT g, sum(DISTINCT k % 3) AS s, count(DISTINCT d) AS n FROM m GROUP BY g",
    "dates": "SELECT year(d) AS y, month(d) AS mo, min(d) AS first_day, max(d) AS last_day, count(*) AS n FROM m GROUP BY year(d), month(d)",
    "filtered": "SELECT g, sum(p) FILTER (WHERE o) AS t, avg(p) FILTER (WHERE k > 3) AS a, count(*) FILTER (WHERE s LIKE 'x%') AS n FROM m GROUP BY g",
    "total of doubles": "SELECT sum(x) AS s, avg(p) AS a, count(DISTINCT s) AS n FROM m",
    "grouped by text": "SELECT coalesce(s, 'none') AS t, count(*) AS n, sum(p * 2) AS w FROM m GROUP BY coalesce(s, 'none')",
    "grouped by date": "SELECT d, sum(k) AS n FROM m WHERE d IS NOT NULL GROUP BY d HAVING count(*) > 1",
    "group by all": "SELECT g, o, count(*) AS n FROM m GROUP BY ALL",
    # Grouping sets.
    "rollup": "SELECT g, o, sum(k) AS s, count(*) AS n FROM m GROUP BY ROLLUP(g, o)",
    "cube": "SELECT o, d, max(p) AS hi, grouping(o) AS go, grouping_id() AS i FROM m GROUP BY CUBE(o, d)",
    "grouping sets": "SELECT g, s, count(*) AS n, sum(g) AS t FROM m GROUP BY GROUPING SETS ((g, s), (g), (g), ())",
    "rollup beside a key": "SELECT o, year(d) AS y, s, avg(k) AS a FROM m GROUP BY o, ROLLUP(year(d), s) HAVING grouping(s) = 1 OR count(*) > 1",
    "with cube": "SELECT g, v, count(DISTINCT k) AS n FROM a WHERE k > 6 GROUP BY g, v WITH CUBE",
    "total of nothing": "SELECT count(*) AS n FROM a WHERE k > 100 GROUP BY GROUPING SETS (())",
    "natural": "SELECT k, v, s FROM a NATURAL JOIN b",
    "hinted": "SELECT /*+ BROADCAST(b) */ a.k, b.v FROM a JOIN b ON a.k = b.k",
    # Scalars.
    "arithmetic": "SELECT k, p * 2 AS a, p + 1 AS b, p / 3 AS c, k % 3 AS e, -p AS f, abs(p) AS h FROM m",
    "of dates": "SELECT k, d + INTERVAL 1 MONTH AS a, date_add(d, 3) AS b, datediff(d, DATE'2020-01-01') AS c, quarter(d) AS q FROM m",
    "of texts": "SELECT k, concat(s, '!') AS a, replace(s, 'x', 'zz') AS b, trim(s) AS c, contains(s, 'y') AS e FROM m",
    "of truths": "SELECT k, o AND k > 2 AS a, NOT o AS b, o <=> NULL AS c, nullif(g, 1) AS e FROM m",
    "casts": "SELECT k, cast(k AS string) AS a, cast(p AS double) AS b, cast(k AS decimal(23,3)) AS c, cast(d AS string) AS e FROM m",
    # Joins.
    "by date": "SELECT x.k, y.k AS other FROM m x JOIN m y ON x.d = y.d AND x.k < y.k",
    "mixed types": "SELECT m.k, a.v FROM m JOIN a ON m.g = a.g AND m.p > a.v",
    "three ways": "SELECT m.k, a.k AS ak, b.k AS bk FROM m JOIN a ON m.g = a.g LEFT JOIN b ON a.k = b.k",
    "semi": "SELECT k, p FROM m LEFT SEMI JOIN a ON m.g = a.g",
    "anti": "SELECT k, p FROM m LEFT ANTI JOIN a ON m.g = a.g AND a.v > 2",
    # Subqueries, set operations.
    "more than average": "SELECT k FROM m WHERE p > (SELECT avg(p) FROM m)",
    "correlated sum": "SELECT k FROM m WHERE p >= (SELECT sum(v) FROM a WHERE a.g = m.g)",
    "not in with nulls": "SELECT k FROM m WHERE g NOT IN (SELECT g FROM a WHERE g IS NOT NULL)",
    "three unions": "SELECT k FROM a UNION SELECT k FROM b UNION SELECT k FROM m",
    "except of groups": "SELECT g FROM a GROUP BY g EXCEPT SELECT g FROM m WHERE o",
    # Windows, top.
    "neighbours": "SELECT k, lag(p) OVER (PARTITION BY g ORDER BY k) AS before, lead(d, 2) OVER (PARTITION BY g ORDER BY k) AS after FROM m",
    "running": "SELECT k, sum(k) OVER (PARTITION BY g ORDER BY d) AS s, count(*) OVER (PARTITION BY g ORDER BY k) AS n FROM m",
    "by rows": "SELECT k, max(k) OVER (PARTITION BY o ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS hi FROM m",
    "top of each": "SELECT k, g, p FROM (SELECT k, g, p, row_number() OVER (PARTITION BY g ORDER BY p DESC, k) AS r FROM m) t WHERE r <= 2",
    "dense": "SELECT k, dense_rank() OVER (PARTITION BY o ORDER BY d DESC) AS r FROM m",
    "first three": "SELECT k, p, d FROM m ORDER BY p DESC, k LIMIT 3",
}

ON_SPARK = {
    "regular expressions": "SELECT k, regexp_replace(s, '[xy]', '-') AS a, s RLIKE '^x' AS b FROM m",
    "rounding": "SELECT k, round(p, 1) AS a, floor(x) AS b, ceil(p) AS c, sqrt(abs(k)) AS e FROM m",
    "digests grouped": "SELECT sha2(coalesce(s, ''), 256) AS h, count(*) AS n, sum(p) AS t FROM m GROUP BY sha2(coalesce(s, ''), 256)",
    "joined by soundex": "SELECT x.k, a.k AS ak FROM m x JOIN a ON soundex(x.s) = soundex(a.s)",
    "percentiles": "SELECT g, percentile(p, 0.5) AS p50, median(k) AS md FROM m GROUP BY g",
    "moments": "SELECT g, skewness(k) AS sk, kurtosis(k) AS ku FROM m GROUP BY g",
    "bits": "SELECT g, bit_and(k) AS a, bit_xor(k) AS x FROM m GROUP BY g",
    "pairs of distinct": "SELECT o, count(DISTINCT g, d) AS n FROM m GROUP BY o",
    "sorted lists": "SELECT g, sort_array(collect_list(k)) AS ks FROM m GROUP BY g",
    "frames": "SELECT k, sum(p) OVER (PARTITION BY g ORDER BY k ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s, ntile(2) OVER (PARTITION BY g ORDER BY k) AS t FROM m",
    "months": "SELECT date_trunc('MONTH', d) AS mo, sum(p) AS s FROM m GROUP BY date_trunc('MONTH', d)",
    "formatted": "SELECT k, date_format(d, 'yyyy/MM') AS ym, format_string('%05d', k) AS z FROM m WHERE d > DATE'2019-06-01'",
}

DS_TABLES = {
    "store_sales": (
        "ss_ticket bigint, ss_item bigint, ss_date bigint, ss_customer bigint, ss_store bigint, ss_quantity int, ss_price decimal(7,2), ss_paid decimal(9,2), ss_profit decimal(9,2)",
        ["ss_ticket", "ss_item"],
    ),
    "store_returns": (
        "sr_ticket bigint, sr_item bigint, sr_date bigint, sr_customer bigint, sr_quantity int, sr_amount decimal(9,2)",
        ["sr_ticket", "sr_item"],
    ),
    "web_sales": (
        "ws_order bigint, ws_item bigint, ws_date bigint, ws_customer bigint, ws_quantity int, ws_paid decimal(9,2), ws_profit decimal(9,2)",
        ["ws_order", "ws_item"],
    ),
    "date_dim": ("d_date_sk bigint, d_date date, d_year int, d_moy int, d_qoy int, d_day string", ["d_date_sk"]),
    "item": (
        "i_item_sk bigint, i_brand string, i_category string, i_class string, i_price decimal(7,2), i_manufact int",
        ["i_item_sk"],
    ),
    "customer": (
        "c_customer_sk bigint, c_addr bigint, c_first string, c_last string, c_country string",
        ["c_customer_sk"],
    ),
    "address": ("ca_address_sk bigint, ca_state string, ca_city string, ca_zip string", ["ca_address_sk"]),
    "store": ("s_store_sk bigint, s_name string, s_state string", ["s_store_sk"]),
}

_Y = "d_year = 2000"
DS = {
    "ds1": "WITH r AS (SELECT sr_customer AS c, s_store_sk AS st, sum(sr_amount) AS total FROM store_returns JOIN store_sales ON sr_ticket = ss_ticket AND sr_item = ss_item JOIN store ON ss_store = s_store_sk GROUP BY sr_customer, s_store_sk) SELECT c_last FROM r JOIN customer ON c = c_customer_sk WHERE total > (SELECT avg(total) FROM r r2 WHERE r.st = r2.st)",
    "ds3": "SELECT d_year, i_brand, sum(ss_paid) AS total FROM date_dim, store_sales, item WHERE d_date_sk = ss_date AND ss_item = i_item_sk AND i_manufact = 1 AND d_moy = 11 GROUP BY d_year, i_brand ORDER BY d_year, total DESC, i_brand LIMIT 10",
    "ds4": "WITH s AS (SELECT ss_customer AS c, d_year AS y, sum(ss_paid) AS t FROM store_sales JOIN date_dim ON ss_date = d_date_sk GROUP BY ss_customer, d_year), w AS (SELECT ws_customer AS c, d_year AS y, sum(ws_paid) AS t FROM web_sales JOIN date_dim ON ws_date = d_date_sk GROUP BY ws_customer, d_year) SELECT s.c, s.y FROM s JOIN w ON s.c = w.c AND s.y = w.y WHERE w.t > s.t",
    "ds6": "SELECT ca_state, count(*) AS n FROM address, customer, store_sales, item i WHERE ca_address_sk = c_addr AND c_customer_sk = ss_customer AND ss_item = i.i_item_sk AND i.i_price > (SELECT 1.2 * avg(j.i_price) FROM item j WHERE j.i_category = i.i_category) GROUP BY ca_state HAVING count(*) >= 2",
    "ds7": "SELECT i_brand, avg(ss_quantity) AS q, avg(ss_price) AS p FROM store_sales JOIN item ON ss_item = i_item_sk JOIN date_dim ON ss_date = d_date_sk WHERE d_year = 2000 GROUP BY i_brand",
    "ds8": "SELECT s_name, sum(ss_profit) AS p FROM store_sales, store, (SELECT substring(ca_zip, 1, 2) AS z FROM address INTERSECT SELECT substring(ca_zip, 1, 2) AS z FROM address JOIN customer ON ca_address_sk = c_addr WHERE c_country = 'NO') t WHERE ss_store = s_store_sk AND substring(s_state, 1, 1) = substring(t.z, 1, 1) GROUP BY s_name",
    "ds9": "SELECT i_class, CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity > 5) > 4 THEN 'many' ELSE 'few' END AS size FROM item WHERE i_price > 1",
    "ds10": "SELECT c_country, count(*) AS n FROM customer c WHERE EXISTS (SELECT 1 FROM store_sales, date_dim WHERE c.c_customer_sk = ss_customer AND ss_date = d_date_sk AND d_year = 2000) GROUP BY c_country",
    "ds11": "SELECT c_last, count(DISTINCT ss_store) AS stores FROM customer JOIN store_sales ON c_customer_sk = ss_customer GROUP BY c_last",
    "ds12": "SELECT i_class, ws_paid, sum(ws_paid) OVER (PARTITION BY i_class) AS class_total FROM web_sales JOIN item ON ws_item = i_item_sk",
    "ds13": "SELECT avg(ss_quantity) AS q, sum(ss_paid) AS p FROM store_sales, store, address, customer WHERE s_store_sk = ss_store AND ss_customer = c_customer_sk AND c_addr = ca_address_sk AND (ca_state = 'CA' AND ss_profit BETWEEN 1 AND 20 OR ca_state = 'TX' AND ss_profit > 5)",
    "ds14": "SELECT i_brand FROM item JOIN store_sales ON i_item_sk = ss_item INTERSECT SELECT i_brand FROM item JOIN web_sales ON i_item_sk = ws_item",
    "ds15": "SELECT ca_zip, sum(ws_paid) AS t FROM web_sales, customer, address, date_dim WHERE ws_customer = c_customer_sk AND c_addr = ca_address_sk AND (ca_state IN ('CA', 'TX') OR ws_paid > 30) AND ws_date = d_date_sk AND d_qoy = 1 GROUP BY ca_zip ORDER BY ca_zip LIMIT 5",
    "ds16": "SELECT count(DISTINCT ws_order) AS orders, sum(ws_paid) AS paid FROM web_sales w WHERE EXISTS (SELECT 1 FROM web_sales v WHERE v.ws_order = w.ws_order AND v.ws_item <> w.ws_item) AND NOT EXISTS (SELECT 1 FROM store_returns WHERE sr_customer = w.ws_customer)",
    "ds17": "SELECT i_class, count(ss_quantity) AS n, avg(ss_quantity) AS a, stddev_samp(ss_quantity) AS sd FROM store_sales, store_returns, item WHERE ss_ticket = sr_ticket AND ss_item = sr_item AND i_item_sk = ss_item GROUP BY i_class",
    "ds19": "SELECT i_brand, sum(ss_paid) AS t FROM store_sales, item, customer, address, store WHERE ss_item = i_item_sk AND ss_customer = c_customer_sk AND c_addr = ca_address_sk AND substring(ca_zip, 1, 1) <> substring(s_state, 1, 1) AND ss_store = s_store_sk GROUP BY i_brand",
    "ds20": "SELECT i_category, i_class, sum(ws_paid) AS r FROM web_sales, item, date_dim WHERE ws_item = i_item_sk AND i_category IN ('Books', 'Home') AND ws_date = d_date_sk AND d_date BETWEEN DATE'2000-01-01' AND DATE'2000-12-31' GROUP BY i_category, i_class",
    "ds22": "SELECT i_brand, avg(ss_quantity) AS q FROM store_sales JOIN item ON ss_item = i_item_sk GROUP BY i_brand ORDER BY q, i_brand LIMIT 3",
    "ds23": "WITH best AS (SELECT ss_customer AS c FROM store_sales GROUP BY ss_customer HAVING sum(ss_quantity * ss_price) > (SELECT 0.5 * max(t) FROM (SELECT sum(ss_quantity * ss_price) AS t FROM store_sales GROUP BY ss_customer) x)) SELECT sum(ws_quantity) AS q FROM web_sales WHERE ws_customer IN (SELECT c FROM best)",
    "ds25": "SELECT i_class, s_name, sum(ss_profit) AS p, sum(sr_amount) AS r FROM store_sales JOIN store_returns ON ss_ticket = sr_ticket AND ss_item = sr_item JOIN item ON ss_item = i_item_sk JOIN store ON ss_store = s_store_sk GROUP BY i_class, s_name",
    "ds26": "SELECT i_class, avg(ws_quantity) AS q, avg(ws_paid) AS p FROM web_sales LEFT JOIN item ON ws_item = i_item_sk GROUP BY i_class",
    "ds28": "SELECT b.lo, b.n, c.n AS m FROM (SELECT min(ss_price) AS lo, count(DISTINCT ss_price) AS n FROM store_sales WHERE ss_quantity BETWEEN 0 AND 5) b CROSS JOIN (SELECT count(ss_price) AS n FROM store_sales WHERE ss_quantity BETWEEN 6 AND 10) c",
    "ds30": "WITH t AS (SELECT ws_customer AS c, ca_state AS st, sum(ws_paid) AS total FROM web_sales, customer, address WHERE ws_customer = c_customer_sk AND c_addr = ca_address_sk GROUP BY ws_customer, ca_state) SELECT c, total FROM t WHERE total > (SELECT avg(total) * 1.2 FROM t u WHERE t.st = u.st)",
    "ds31": "WITH s AS (SELECT d_qoy, sum(ss_paid) AS t FROM store_sales JOIN date_dim ON ss_date = d_date_sk GROUP BY d_qoy), w AS (SELECT d_qoy, sum(ws_paid) AS t FROM web_sales JOIN date_dim ON ws_date = d_date_sk GROUP BY d_qoy) SELECT s.d_qoy, CASE WHEN w.t > s.t THEN 'web' ELSE 'store' END AS more FROM s FULL JOIN w ON s.d_qoy = w.d_qoy",
    "ds32": "SELECT sum(ws_paid) AS excess FROM web_sales w, item WHERE i_item_sk = w.ws_item AND w.ws_paid > (SELECT 1.3 * avg(v.ws_paid) FROM web_sales v WHERE v.ws_item = i_item_sk)",
    "ds33": "SELECT i_manufact, sum(total) AS t FROM (SELECT i_manufact, ss_paid AS total FROM store_sales JOIN item ON ss_item = i_item_sk UNION ALL SELECT i_manufact, ws_paid AS total FROM web_sales JOIN item ON ws_item = i_item_sk) x GROUP BY i_manufact",
    "ds34": "SELECT c_last, cnt FROM (SELECT ss_ticket, ss_customer, count(*) AS cnt FROM store_sales GROUP BY ss_ticket, ss_customer) dn, customer WHERE ss_customer = c_customer_sk AND cnt BETWEEN 2 AND 5",
    "ds35": "SELECT ca_state, count(*) AS n, min(c_first) AS f FROM customer c JOIN address ON c.c_addr = ca_address_sk WHERE c.c_customer_sk IN (SELECT ws_customer FROM web_sales WHERE ws_quantity > 2) GROUP BY ca_state",
    "ds37": "SELECT i_item_sk, i_price FROM item WHERE i_price BETWEEN 1 AND 30 AND i_item_sk IN (SELECT ss_item FROM store_sales, date_dim WHERE ss_date = d_date_sk AND d_year = 2000)",
    "ds38": "SELECT count(*) AS n FROM (SELECT DISTINCT c_last, d_date FROM store_sales, date_dim, customer WHERE ss_date = d_date_sk AND ss_customer = c_customer_sk INTERSECT SELECT DISTINCT c_last, d_date FROM web_sales, date_dim, customer WHERE ws_date = d_date_sk AND ws_customer = c_customer_sk) hot",
    "ds41": "SELECT DISTINCT i_class FROM item i WHERE (SELECT count(*) FROM item j WHERE j.i_manufact = i.i_manufact AND j.i_category = 'Books') > 0",
    "ds42": "SELECT d_year, i_category, sum(ss_paid) AS t FROM date_dim JOIN store_sales ON d_date_sk = ss_date JOIN item ON ss_item = i_item_sk WHERE d_moy = 11 GROUP BY d_year, i_category ORDER BY t DESC, d_year, i_category LIMIT 4",
    "ds43": "SELECT s_name, sum(CASE WHEN d_day = 'Sunday' THEN ss_paid ELSE NULL END) AS sun, sum(CASE WHEN d_day = 'Monday' THEN ss_paid ELSE NULL END) AS mon FROM date_dim, store_sales, store WHERE d_date_sk = ss_date AND s_store_sk = ss_store GROUP BY s_name",
    "ds44": "SELECT i_brand, r FROM (SELECT ss_item, rank() OVER (PARTITION BY st ORDER BY p) AS r FROM (SELECT ss_item, ss_store AS st, avg(ss_profit) AS p FROM store_sales GROUP BY ss_item, ss_store) v) w JOIN item ON ss_item = i_item_sk WHERE r < 3",
    "ds47": "SELECT i_category, d_year, d_moy, s, s - lag_s AS change FROM (SELECT i_category, d_year, d_moy, s, lag(s) OVER (PARTITION BY i_category ORDER BY d_year, d_moy) AS lag_s FROM (SELECT i_category, d_year, d_moy, sum(ss_quantity) AS s FROM item, store_sales, date_dim WHERE ss_item = i_item_sk AND ss_date = d_date_sk GROUP BY i_category, d_year, d_moy) t) u",
    "ds48": "SELECT sum(ss_quantity) AS q FROM store_sales, store, customer, address WHERE s_store_sk = ss_store AND ss_customer = c_customer_sk AND c_addr = ca_address_sk AND (ca_state = 'CA' OR ca_state = 'NY') AND ss_price BETWEEN 2 AND 40",
    "ds50": "SELECT s_name, sum(CASE WHEN sr_date - ss_date <= 2 THEN 1 ELSE 0 END) AS soon, sum(CASE WHEN sr_date - ss_date > 2 THEN 1 ELSE 0 END) AS late FROM store_sales, store_returns, store WHERE ss_ticket = sr_ticket AND ss_item = sr_item AND ss_store = s_store_sk GROUP BY s_name",
    "ds51": "SELECT ss_item, ss_date, sum(q) OVER (PARTITION BY ss_item ORDER BY ss_date) AS upto FROM (SELECT ss_item, ss_date, sum(ss_quantity) AS q FROM store_sales GROUP BY ss_item, ss_date) t",
    "ds69": "SELECT c_country, count(*) AS n FROM customer c WHERE EXISTS (SELECT 1 FROM store_sales WHERE c.c_customer_sk = ss_customer) AND NOT EXISTS (SELECT 1 FROM web_sales WHERE c.c_customer_sk = ws_customer) GROUP BY c_country",
    "ds87": "SELECT count(*) AS n FROM (SELECT DISTINCT c_last, c_first FROM store_sales JOIN customer ON ss_customer = c_customer_sk EXCEPT SELECT DISTINCT c_last, c_first FROM web_sales JOIN customer ON ws_customer = c_customer_sk) t",
    "ds93": "SELECT ss_customer, sum(CASE WHEN sr_quantity IS NOT NULL THEN (ss_quantity - sr_quantity) * ss_price ELSE ss_quantity * ss_price END) AS act FROM store_sales LEFT JOIN store_returns ON sr_item = ss_item AND sr_ticket = ss_ticket GROUP BY ss_customer",
    "ds97": "WITH s AS (SELECT ss_customer AS c, ss_item AS i FROM store_sales GROUP BY ss_customer, ss_item), w AS (SELECT ws_customer AS c, ws_item AS i FROM web_sales GROUP BY ws_customer, ws_item) SELECT sum(CASE WHEN s.c IS NOT NULL AND w.c IS NULL THEN 1 ELSE 0 END) AS store_only, sum(CASE WHEN s.c IS NOT NULL AND w.c IS NOT NULL THEN 1 ELSE 0 END) AS both_of FROM s FULL JOIN w ON s.c = w.c AND s.i = w.i",
    "ds98": "SELECT i_class, rev, rev * 100 / sum(rev) OVER (PARTITION BY i_category) AS share FROM (SELECT i_category, i_class, sum(ss_paid) AS rev FROM store_sales JOIN item ON ss_item = i_item_sk GROUP BY i_category, i_class) t",
}

ARRAY_TABLES = {
    "orders": (
        "id bigint, day date, tags array<string>, items array<struct<sku: string, price: decimal(7,2)>>",
        ["id"],
    ),
    "skus": ("sku string, kind string", ["sku"]),
}
ARRAYS = {
    "exploded": "SELECT id, tag FROM orders LATERAL VIEW explode(tags) t AS tag",
    "exploded outer": "SELECT id, tag FROM orders LATERAL VIEW OUTER explode(tags) AS tag WHERE id > 2",
    "with places": "SELECT id, place, tag FROM orders LATERAL VIEW posexplode(tags) t AS place, tag WHERE place < 2",
    "with places outer": "SELECT id, posexplode_outer(tags) AS (place, tag) FROM orders",
    "in select": "SELECT id, explode(items) AS item FROM orders",
    "outer in select": "SELECT id + 1 AS n, explode_outer(tags) AS tags FROM orders WHERE tags IS NULL OR id < 5",
    "elements counted": "SELECT tag, count(*) AS n, min(id) AS first FROM orders LATERAL VIEW explode(tags) AS tag GROUP BY tag",
    "fields": "SELECT id, item.sku AS sku, item.Price * 2 AS price FROM orders LATERAL VIEW explode(items) AS item",
    "joined fields": "SELECT kind, sum(item.price) AS paid, count(*) AS n FROM orders JOIN skus s LATERAL VIEW explode(items) AS item WHERE s.sku = item.sku GROUP BY kind",
    "after a left join": "SELECT o.id, s.kind, tag FROM orders o LEFT JOIN skus s ON length(s.sku) = o.id LATERAL VIEW OUTER explode(tags) AS tag",
    "beside an anti join": "SELECT o.id, item.price AS price FROM orders o LEFT ANTI JOIN skus s ON s.kind = 'CA' AND length(s.sku) = o.id LATERAL VIEW explode(items) AS item",
    "after a full join": "SELECT o.id, s.kind, n FROM orders o FULL JOIN skus s ON length(s.sku) = o.id LATERAL VIEW OUTER explode(array(o.id, length(s.kind))) AS n WHERE n > 1 OR s.kind IS NULL",
    "of both sides": "SELECT o.id, n FROM orders o JOIN skus s ON length(s.sku) = o.id LATERAL VIEW explode(array(o.id, length(s.kind))) AS n",
    "two arrays": "SELECT id, tag, item.price AS price FROM orders LATERAL VIEW explode(tags) AS tag LATERAL VIEW OUTER explode(items) AS item",
    "made of columns": "SELECT id, d FROM orders LATERAL VIEW explode(array(day, DATE'2020-01-01', day)) AS d",
    "of unnamed columns": "SELECT id, e.col AS x, f.pos AS place FROM orders LATERAL VIEW explode(tags) e LATERAL VIEW posexplode(array(id, 7)) f",
    "in a derived table": "SELECT o.id, t.n FROM orders o LEFT JOIN (SELECT id, count(*) AS n FROM orders LATERAL VIEW explode(tags) AS tag WHERE tag <> 'b' GROUP BY id) t ON o.id = t.id",
    "best element": "SELECT id, sku, price FROM (SELECT id, item.sku AS sku, item.price AS price, row_number() OVER (PARTITION BY id ORDER BY item.price DESC, item.sku) AS r FROM orders LATERAL VIEW explode(items) AS item) t WHERE r = 1",
    "split on spark": "SELECT id, part FROM orders JOIN skus ON orders.id = length(skus.kind) LATERAL VIEW explode(split(skus.kind, '[oy]')) AS part",
}
