// Who looks at the page. Filled in when signed in; views hide what the key may not do anyway.

export const me = { name: "", admin: false, dev: false };
