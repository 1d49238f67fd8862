"""Texts of our own that tokenizers are compared on: languages, code, and what trips splitters."""

import random

LANGUAGES = [
    "The gateway counts the tokens of a prompt before any replica has seen it; it's exact.",
    "Le temps est beau aujourd'hui, mais demain il pleuvra à l'aube : c'est l'été.",
    "Größe, Übermut und Straßenbahn: „Ich weiß nicht“, sagte er um 17:45 Uhr.",
    "¿Dónde está la biblioteca? ¡Mañana lloverá en la ciudad de Logroño!",
    "Perché non c'è più caffè? La città è già sveglia.",
    "O coração não é de ferro; amanhã pedirei pão e maçãs.",
    "Het weer is mooi, zei zij, en de zon scheen over 's-Hertogenbosch.",
    "Vädret är fint idag, men i morgon blåser det på Åland.",
    "Hún sagði að þetta væri ágætt veður á Íslandi.",
    "Sää on tänään kaunis, mutta huomenna sataa räntää.",
    "Zażółć gęślą jaźń; wczoraj było zimno w Łodzi.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Az árvíztűrő tükörfúrógép nem ázott meg.",
    "Vremea este frumoasă, însă mâine va ploua în București.",
    "Bugün hava güzel, yarın İstanbul'da ışıl ışıl olacak.",
    "Hôm nay trời đẹp, ngày mai sẽ mưa ở Đà Nẵng.",
    "Cuaca hari ini cerah dan besok mungkin hujan.",
    "Hali ya hewa ni nzuri leo, kesho mvua itanyesha.",
    "Погода сегодня хорошая, а завтра будет дождь; ёлка стоит у реки.",
    "Сьогодні гарна погода, а їжак з'їв яблуко.",
    "Времето днес е хубаво, утре ще вали в София.",
    "Данас је лепо време, а сутра ће падати киша.",
    "Ο καιρός είναι καλός σήμερα· αύριο θα βρέξει στην Αθήνα.",
    "Այսօր եղանակը լավն է, վաղը անձրև կգա։",
    "დღეს კარგი ამინდია, ხვალ კი იწვიმებს.",
    "מזג האוויר נעים היום, ומחר יֵרֵד גֶּשֶׁם.",
    "الطقس جميل اليوم، وغدًا ستمطر في المدينة.",
    "هوا امروز خوب است و فردا باران می‌بارد.",
    "آج موسم اچھا ہے، کل بارش ہوگی۔",
    "आज मौसम अच्छा है, कल बारिश होगी। क्या आप तैयार हैं?",
    "আজ আবহাওয়া ভালো, কাল বৃষ্টি হবে।",
    "இன்று வானிலை நன்றாக உள்ளது, நாளை மழை பெய்யும்.",
    "ఈ రోజు వాతావరణం బాగుంది, రేపు వర్షం పడుతుంది.",
    "ಇಂದು ಹವಾಮಾನ ಚೆನ್ನಾಗಿದೆ.",
    "ഇന്ന് കാലാവസ്ഥ നല്ലതാണ്.",
    "අද කාලගුණය හොඳයි.",
    "วันนี้อากาศดี พรุ่งนี้ฝนจะตกที่เชียงใหม่",
    "ມື້ນີ້ອາກາດດີ.",
    "ဒီနေ့ ရာသီဥတု ကောင်းတယ်။",
    "ថ្ងៃនេះអាកាសធាតុល្អ។",
    "བོད་ཀྱི་གནམ་གཤིས་ཡག་པོ་འདུག",
    "ዛሬ የአየር ሁኔታ ጥሩ ነው።",
    "今天天气很好，明天会下雨。请问几点开始？",
    "今天天氣很好，明天會下雨；請問幾點開始？",
    "今日の天気はとても良いです。カタカナとひらがな、ﾊﾝｶｸ。",
    "오늘 날씨가 좋습니다. 내일은 비가 올까요?",
    "Өнөөдөр цаг агаар сайхан байна.",
    "👋🏽 👨‍👩‍👧‍👦 🇫🇷🇯🇵 ✅ 🏳️‍🌈 ☀️ 1️⃣ ❤️‍🔥",
    "∑ᵢ xᵢ² ≤ ∫₀^∞ e⁻ˣ dx ≈ 1 ± ½ … № ℝ → ∅ ⇔ ¬p ∨ q",
]

CODE = [
    'fn main() {\n    let x = vec![1, 22, 333];\n\tprintln!("{:?}", x); // it\'s 4,444\n}\n'
    "\n\n",
    "def f(a: int = 0, *b, **c) -> str:\n    return f'{a!r:>10}' if a else \"\"\n\n\n"
    "class A(B):\n        pass\n",
    "#include <stdio.h>\r\nint main(void) {\r\n\treturn printf(\"%d\\n\", 0xFFu) < 0;\r\n}\r\n",
    "SELECT a.id, COUNT(*) FROM a LEFT JOIN b ON a.id=b.a_id WHERE b.x IS NULL GROUP BY 1;",
    '{"name": "get_weather","parameters":{"city":"Paris","days":[1,2,3]},"ok":true,"e":1e-9}',
    "<!doctype html>\n<p class=\"a\">x &amp; y</p>\n<script>let a = b => c?.d ?? [];</script>\n",
    "for f in *.rs; do sed -i 's/a\\/b/c/g' \"$f\" && echo ${f%.rs}; done 2>/dev/null | wc -l",
    "---\n- a: &x\n    b: [1, 2]\n- <<: *x\n  c: |\n    text\n      more\n",
    "\\begin{align} \\frac{a}{b} &= \\sqrt{x^{2}+y^{2}} \\\\ \\end{align}",
    "https://example.com/a/b?c=d&e=%20#f user@example.com C:\\path\\file.txt "
    "//comment\n/*x*/\n/y/\n",
    "+++ b/src/a.rs\n@@ -1,3 +1,4 @@\n-    old();\n+    new();\n \n",
    "HTTPServerError2XX camelCaseString snake_case_string kebab-case IOError iPhone XMLHttpRequest",
]

SPECIAL = [
    "<s>",
    "</s>",
    "[INST] Hello [/INST]",
    "<s>[INST] Say <unk> and <pad>. [/INST] Sure</s>",
    "[TOOL_CALLS][{\"name\": \"f\"}]</s>[TOOL_RESULTS] x [/TOOL_RESULTS]",
    "[SYSTEM_PROMPT]You are[/SYSTEM_PROMPT][IMG][IMG_BREAK][IMG_END]",
    "[THINK]hm[/THINK][ARGS]{}[CALL_ID]abc [AUDIO][BEGIN_AUDIO]",
    "<SPECIAL_20><SPECIAL_999> <SPECIAL_1000>",
    "<|im_start|>user\n<|channel|><|start|>",
    "lang:en hello",
]

FRAGMENTS = [
    " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r", " \n ", "\u00a0", "\u3000", "\u2028",
    "\u0085", "\u200b", "\u200d", "\u200c", "\ufeff", "\u2060", "\x00", "\x7f", "\x1b[0m", "\x0b",
    "a", "A", "aB", "Ab", "ABc", "abC", "the", " The", "HELLO", "x9", "7", "42", "12345", "³", "½",
    "Ⅷ", "٣", "०", "①", "'", "'s", "'S", "'\u017f", "’s", "don't", "DON'T", ".", "..", "...", ",",
    "!?", "/", "//", "/\n", "?/\r\n", "*/", "-", "--", "_", "__a", "#", "\"", "()", "[]", "{}\n",
    "é", "e\u0301", "\u0301", "\u0300\u0301", "Å", "A\u030a", "ǅ", "ʰ", "ß", "ẞ", "İ", "ı", "ﬁ",
    "\u0489", "\u093f", "क", "ख़", "日", "本語", "、", "。", "ｱ", "ー", "한", "\u1112\u1161\u11ab",
    "ж", "Ж", "ёЁ", "ש\u05c1", "لا", "ﷺ", "\u0640", "ก\u0e33", "👍", "👍🏽", "👩‍💻", "🇩🇪", "\ufe0f",
    "\ue000", "\uffff", "\ufffd", "\U0010ffff", "\U000e0041", "\U0001d400", "\U00020000", "\u0378",
    "<s>", "[INST]", "</s", "[/", "INST]", "<SPECIAL_20>", "\u05c8", "\u0600", "\u180e", "\u2044",
]


def hostile(count):
    """Seeded strings of the fragments."""
    rng = random.Random(20261130)
    return ["".join(rng.choices(FRAGMENTS, k=rng.randint(1, 24))) for _ in range(count)]


def long(count):
    """Texts of some kilobytes of all of the above."""
    rng = random.Random(5)
    pool = LANGUAGES + CODE + SPECIAL + FRAGMENTS
    return [rng.choice(["\n", " ", ""]).join(rng.choices(pool, k=80)) for _ in range(count)]


RUNS = ["", "a" * 700, " " * 600, "\n" * 500, "!" * 500, "ab" * 400, "é" * 300, "日" * 300,
        "0" * 300, " a" * 300, "\u0301" * 200, "👍" * 200, "\t\n" * 200, "A" * 300 + "b" * 300]

TEXTS = LANGUAGES + CODE + SPECIAL + RUNS + hostile(160) + long(6)
